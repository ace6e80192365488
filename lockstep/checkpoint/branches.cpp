#include "lockstep/checkpoint/branches.h"

#include <algorithm>
#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/publish.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;


std::optional<int> branch_number(std::string_view name) {
  if (!name.starts_with(kSetAsidePrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kSetAsidePrefix.size());
  int number = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (result.ec != std::errc() || number < 1 || cat(kSetAsidePrefix, number) != name) return std::nullopt;
  return number;
}

// Numbers of the branches in `directory`, the largest first.
std::vector<int> branches_in(const fs::path& directory) {
  std::vector<int> numbers;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(directory, missing)) {
    if (const auto number = branch_number(entry.path().filename().string())) numbers.push_back(*number);
  }
  std::sort(numbers.rbegin(), numbers.rend());
  return numbers;
}

std::string next_branch(const fs::path& directory) {
  const std::vector<int> numbers = branches_in(directory);
  return cat(kSetAsidePrefix, numbers.empty() ? 1 : numbers.front() + 1);
}

// Newest first.
std::vector<std::string> steps_after(const fs::path& directory, int64_t step) {
  std::vector<std::pair<int64_t, std::string>> later;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(directory, missing)) {
    const std::string name = entry.path().filename().string();
    const auto number = parse_step_name(name);
    if (number && *number > step) later.emplace_back(*number, name);
  }
  std::sort(later.rbegin(), later.rend());
  std::vector<std::string> names;
  for (auto& [number, name] : later) names.push_back(std::move(name));
  return names;
}

SetAside move_later(const fs::path& directory, int64_t step, const std::string& folder) {
  const std::vector<std::string> later = steps_after(directory, step);
  if (later.empty()) return {};
  std::error_code code;
  fs::create_directories(directory / folder, code);
  for (const std::string& name : later) {
    if (!code) fs::rename(directory / name, directory / folder / name, code);
    if (code)
      throw EnvironmentError({.code = "LS3101",
                              .what = cat("cannot set ", (directory / name).string(), " aside in ",
                                          (directory / folder).string(), ": ", code.message())});
  }
  sync_directory(directory / folder);
  sync_directory(directory);
  (void)point_latest(directory, step_name(step));  // the save that follows says why, should it not be possible
  return {.folder = folder, .steps = later};
}

struct WentBack {
  int64_t step = 0;
  std::string folder{};  // that later steps are being moved to; empty = done
};

void remember(const fs::path& directory, const WentBack& done) {
  Json json = {{"step", done.step}};
  if (!done.folder.empty()) json["setting_aside"] = done.folder;
  write_file(directory / kWentBackName, json.dump() + "\n");
}

std::optional<WentBack> recall(const fs::path& directory) {
  const fs::path path = directory / kWentBackName;
  if (!fs::exists(path)) return std::nullopt;
  const Json json = read_json(path);
  WentBack done;
  try {
    json.at("step").get_to(done.step);
    if (json.contains("setting_aside")) json.at("setting_aside").get_to(done.folder);
  } catch (const Json::exception& error) {
    throw CheckpointError({.code = "LS1302",
                           .what = cat("it does not say where the run went back to: ", error.what()),
                           .where = path.string(),
                           .way_out = "remove it: the run goes on from its newest checkpoint"});
  }
  if (!done.folder.empty() && !branch_number(done.folder))
    throw CheckpointError({.code = "LS1302", .what = cat("no folder of a branch: ", done.folder), .where = path.string(),
                           .way_out = "remove it: the run goes on from its newest checkpoint"});
  return done;
}

}  // namespace

SetAside set_aside_after(const fs::path& directory, int64_t step) {
  return move_later(directory, step, next_branch(directory));
}

// Remembered before the first step moves: whoever opens the run next moves the rest.
SetAside go_back(const fs::path& directory, int64_t step) {
  const std::string folder = next_branch(directory);
  remember(directory, {.step = step, .folder = folder});
  SetAside set_aside = move_later(directory, step, folder);
  remember(directory, {.step = step});
  return set_aside;
}

void finish_going_back(const fs::path& directory) {
  const auto done = recall(directory);
  if (!done || done->folder.empty()) return;
  move_later(directory, done->step, done->folder);
  remember(directory, {.step = done->step});
}

std::optional<int64_t> went_back_to(const fs::path& directory) {
  const auto done = recall(directory);
  return done ? std::optional(done->step) : std::nullopt;
}

std::vector<StepFolder> list_set_aside(const fs::path& directory) {
  std::vector<StepFolder> all;
  for (const int number : branches_in(directory)) {
    for (StepFolder& step : list_steps(directory / cat(kSetAsidePrefix, number))) all.push_back(std::move(step));
  }
  return all;
}

std::optional<std::string> branch_of(const fs::path& step_folder) {
  std::string name = fs::weakly_canonical(step_folder).parent_path().filename().string();
  return branch_number(name) ? std::optional(std::move(name)) : std::nullopt;
}

}  // namespace lockstep::checkpoint
