#include "lockstep/checkpoint/inspect.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/checkpoint/branches.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string tensors_text(const std::map<std::string, int64_t>& counts) {
  std::vector<std::string> parts;
  for (const auto& [dtype, count] : counts) parts.push_back(cat(count, " ", dtype));
  return parts.empty() ? "none" : cat(join(parts, ", "), " tensors");
}

void count_tensors(const Manifest& manifest, StepReport* report) {
  for (const auto& [name, tensor] : manifest.tensors) {
    const bool is_parameter = !tensor.pieces.empty() && tensor.pieces.front().file.starts_with("model/");
    ++(is_parameter ? report->model_tensors : report->optim_tensors)[tensor.dtype];
    if (is_parameter) report->parameters += volume(tensor.shape);
  }
}

bool is_one_step(const fs::path& path) { return fs::exists(path / kManifestName) || step_of(path); }

fs::path folder_of_steps(const fs::path& path) {
  return fs::is_directory(path / "checkpoints") ? path / "checkpoints" : path;
}

std::vector<fs::path> paths_of(const std::vector<StepFolder>& steps) {
  std::vector<fs::path> paths;
  for (const StepFolder& step : steps) paths.push_back(step.path);
  return paths;
}

}  // namespace

StepReport inspect_step(const fs::path& step_folder) {
  StepReport report{.path = step_folder, .set_aside = branch_of(step_folder).value_or("")};
  report.train_state.step = step_of(step_folder).value_or(0);
  try {
    const Manifest manifest = read_manifest(step_folder);
    for (const auto& [name, file] : manifest.files) report.files[name] = file.size;
    report.bytes = manifest.total_bytes();
    count_tensors(manifest, &report);
    report.problems = verify_sums(step_folder, manifest);
    report.train_state = read_train_state(step_folder, manifest);
  } catch (const Error& error) {
    if (report.problems.empty()) report.problems.push_back(error.message().what);
  }
  return report;
}

std::vector<fs::path> steps_of(const fs::path& path) {
  if (is_one_step(path)) return {path};
  const fs::path directory = folder_of_steps(path);
  std::vector<fs::path> folders = paths_of(list_steps(directory));
  if (folders.empty())
    throw CheckpointError({.code = "LS1313",
                           .what = cat("no checkpoint in ", directory.string()),
                           .way_out = "name a run directory, its checkpoints/ or one step-* folder"});
  return folders;
}

std::vector<fs::path> set_aside_steps_of(const fs::path& path) {
  if (is_one_step(path)) return {};
  return paths_of(list_set_aside(folder_of_steps(path)));
}

std::string report_text(const StepReport& report) {
  std::string text = cat(report.path.string(), report.whole() ? "  whole" : "  BROKEN",
                         report.set_aside.empty() ? "\n" : ", set aside when the run went back\n");
  for (const std::string& problem : report.problems) text += cat("  problem     ", problem, "\n");
  if (report.files.empty()) return text;
  const TrainState& state = report.train_state;
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += cat("  ", pad_right(name, 10), "  ", value, "\n");
  };
  line("step", cat(state.step, ", ", state.consumed_samples, " samples, ",
                   format_count(static_cast<double>(state.consumed_tokens)), " tokens, seed ", state.seed));
  line("model", state.model.dump());
  line("saved by", cat("lockstep ", state.version, " on ", state.world_size, state.world_size == 1 ? " rank" : " ranks",
                       state.layout.empty() ? "" : ": ", state.layout));
  line("parameters",
       cat(format_count(static_cast<double>(report.parameters)), ": ", tensors_text(report.model_tensors)));
  line("optimizer", tensors_text(report.optim_tensors));
  line("files", cat(report.files.size(), ", ", format_bytes(static_cast<double>(report.bytes)),
                    report.whole() ? ", every checksum matches" : ""));
  for (const auto& [name, size] : report.files)
    text += cat("    ", pad_left(format_bytes(static_cast<double>(size)), 10), "  ", name, "\n");
  return text;
}

OrderedJson report_json(const StepReport& report) {
  const TrainState& state = report.train_state;
  OrderedJson files = OrderedJson::object();
  for (const auto& [name, size] : report.files) files[name] = size;
  return {{"path", report.path.string()},
          {"whole", report.whole()},
          {"set_aside", report.set_aside.empty() ? OrderedJson(nullptr) : OrderedJson(report.set_aside)},
          {"problems", report.problems},
          {"step", state.step},
          {"samples", state.consumed_samples},
          {"tokens", state.consumed_tokens},
          {"seed", state.seed},
          {"model", OrderedJson(state.model)},
          {"version", state.version},
          {"world_size", state.world_size},
          {"layout", state.layout},
          {"parameters", report.parameters},
          {"model_tensors", report.model_tensors},
          {"optim_tensors", report.optim_tensors},
          {"bytes", report.bytes},
          {"files", std::move(files)}};
}

}  // namespace lockstep::checkpoint
