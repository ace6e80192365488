#include "lockstep/checkpoint/directory.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/piece_reader.h"
#include "lockstep/checkpoint/publish.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kStepDigits = 8;

[[noreturn]] void damaged(const fs::path& file, const std::string& what) {
  throw CheckpointError({.code = "LS1303", .what = cat(file.string(), ": ", what)});
}

void check_files(const fs::path& folder, const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    const fs::path path = folder / name;
    std::error_code ignored;
    if (!fs::is_regular_file(fs::symlink_status(path, ignored))) damaged(path, "missing");
    const uint64_t size = fs::file_size(path, ignored);
    if (size != file.size) damaged(path, cat(size, " bytes, ", file.size, " were written"));
  }
}

}  // namespace

std::string step_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return cat(kStepPrefix, std::string(kStepDigits - std::min(kStepDigits, digits.size()), '0'), digits);
}

std::optional<int64_t> parse_step_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  if (name.ends_with(kNewSuffix)) name.remove_suffix(std::string_view(kNewSuffix).size());
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t step = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (result.ec != std::errc() || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

std::optional<int64_t> step_of(const fs::path& folder) {
  const fs::path path = fs::weakly_canonical(folder);
  return parse_step_name((path.has_filename() ? path : path.parent_path()).filename().string());
}

fs::path run_of(const fs::path& path) {
  fs::path run = fs::absolute(path).lexically_normal();
  if (!run.has_filename()) run = run.parent_path();
  if (step_of(run)) run = run.parent_path();
  if (run.filename().string().starts_with(kSetAsidePrefix)) run = run.parent_path();
  if (run.filename() == "checkpoints") run = run.parent_path();
  return path.is_absolute() ? run : run.lexically_proximate(fs::current_path());
}

Manifest read_manifest(const fs::path& step_folder) {
  const fs::path path = step_folder / kManifestName;
  if (!fs::exists(path))
    throw CheckpointError({.code = "LS1302",
                           .what = cat(step_folder.string(), " has no ", kManifestName,
                                       ": it is not a checkpoint, or its writing was interrupted")});
  const Manifest manifest = parse_manifest(read_file(path), path.string());
  const auto step = step_of(step_folder);
  if (step && *step != manifest.step) damaged(path, cat("it is of step ", manifest.step, ", not of ", *step));
  check_files(step_folder, manifest);
  return manifest;
}

TrainState read_train_state(const fs::path& step_folder, const Manifest& manifest) {
  const fs::path path = step_folder / kTrainStateName;
  const auto file = manifest.files.find(kTrainStateName);
  const std::string text = read_file(path);
  if (file == manifest.files.end() || hash64(text) != file->second.hash)
    damaged(path, "its bytes do not match the checksum in the manifest");
  return parse_train_state(text, path.string());
}

std::vector<std::string> verify_sums(const fs::path& step_folder, const Manifest& manifest) {
  std::vector<std::string> problems;
  const auto attempt = [&](const auto& check) {
    try {
      check();
    } catch (const Error& error) {
      problems.push_back(error.message().what);
    }
  };
  attempt([&] { read_train_state(step_folder, manifest); });
  std::map<std::string, std::vector<std::pair<std::string, const Piece*>>> by_file;
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const Piece& piece : tensor.pieces) by_file[piece.file].emplace_back(name, &piece);
  }
  for (const auto& [file, pieces] : by_file) {
    attempt([&, &file = file, &pieces = pieces] {
      const PieceReader reader(step_folder, file, manifest);
      for (const auto& [name, piece] : pieces)
        attempt([&, &name = name, piece = piece] { reader.read(name, *piece, {}); });
    });
  }
  return problems;
}

std::vector<StepFolder> list_steps(const fs::path& directory) {
  std::vector<StepFolder> steps;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(directory, missing)) {
    const auto step = parse_step_name(entry.path().filename().string());
    if (!step || entry.is_symlink() || !entry.is_directory()) continue;
    StepFolder folder{.path = entry.path(), .step = *step};
    try {
      read_manifest(folder.path);
    } catch (const Error& error) {
      folder.problem = error.message().what;
    }
    steps.push_back(std::move(folder));
  }
  // Of two with one number the better one first, and of two whole ones the one with the longer name, the new one.
  std::sort(steps.begin(), steps.end(), [](const StepFolder& a, const StepFolder& b) {
    return std::tuple(b.step, !a.problem.empty(), b.path.filename().string().size()) <
           std::tuple(a.step, !b.problem.empty(), a.path.filename().string().size());
  });
  const auto same = [](const StepFolder& a, const StepFolder& b) { return a.step == b.step; };
  steps.erase(std::unique(steps.begin(), steps.end(), same), steps.end());
  return steps;
}

Latest find_latest(const fs::path& directory) {
  Latest latest;
  for (StepFolder& folder : list_steps(directory)) {
    if (folder.problem.empty()) {
      latest.path = folder.path;
      latest.step = folder.step;
      break;
    }
    latest.skipped.push_back(std::move(folder));
  }
  return latest;
}

void remove_temporary(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().starts_with(kTemporaryPrefix)) fs::remove_all(entry.path());
  }
}

std::vector<std::string> remove_old_steps(const fs::path& directory, int64_t newest, int keep) {
  std::vector<std::string> removed;
  if (keep <= 0) return removed;
  int kept = 0;
  for (const StepFolder& folder : list_steps(directory)) {
    if (folder.step > newest || !folder.problem.empty() || ++kept <= keep) continue;
    // Out of sight by one rename, so that an interrupted removal leaves no half of a step.
    const std::string name = folder.path.filename().string();
    const fs::path doomed = directory / cat(kTemporaryPrefix, "remove-", name);
    fs::rename(folder.path, doomed);
    fs::remove_all(doomed);
    removed.push_back(name);
  }
  return removed;
}

}  // namespace lockstep::checkpoint
