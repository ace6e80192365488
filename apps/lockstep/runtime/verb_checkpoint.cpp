// lockstep checkpoint inspect | verify | diff | export: what a checkpoint or a Hugging Face directory holds, whether it
// is whole, how two of them differ, and one made of the other.
#include "apps/lockstep/runtime/verbs.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/diff.h"
#include "lockstep/checkpoint/hf_inspect.h"
#include "lockstep/checkpoint/inspect.h"

namespace lockstep::apps {
namespace {

int code_of(bool good, ExitCode otherwise) {
  return static_cast<int>(good ? ExitCode::kOk : otherwise);
}

// `verify`: every step must be whole, not just one; of a Hugging Face directory every value is read.
int inspect_path(const CommandLine& command_line, bool verify) {
  const std::string& path = command_line.arguments[1];
  if (names_hf_model(path)) {
    const checkpoint::HfReport report = checkpoint::inspect_hf(source_folder(path), verify);
    if (command_line.json) {
      print(OrderedJson({{"ok", report.good()}, {"hf", checkpoint::report_json(report)}}).dump() + "\n");
    } else {
      print(checkpoint::report_text(report));
    }
    return code_of(report.good(), ExitCode::kData);
  }
  bool any_whole = false, all_whole = true;
  OrderedJson steps = OrderedJson::array();
  const auto show = [&](const checkpoint::StepReport& report) {
    if (command_line.json) {
      steps.push_back(checkpoint::report_json(report));
    } else {
      print(checkpoint::report_text(report));
    }
  };
  for (const auto& step : checkpoint::steps_of(path)) {
    const checkpoint::StepReport report = checkpoint::inspect_step(step);
    any_whole = any_whole || report.whole();
    all_whole = all_whole && report.whole();
    show(report);
  }
  // A run never goes on from these: they decide nothing.
  if (!verify) {
    for (const auto& step : checkpoint::set_aside_steps_of(path)) show(checkpoint::inspect_step(step));
  }
  const bool good = verify ? all_whole : any_whole;
  if (command_line.json) print(OrderedJson({{"ok", good}, {"steps", steps}}).dump() + "\n");
  return code_of(good, ExitCode::kCheckpoint);
}

int diff_paths(const CommandLine& command_line) {
  const checkpoint::ModelDiff diff = checkpoint::diff_models(command_line.arguments[1], command_line.arguments[2]);
  print(command_line.json ? checkpoint::diff_json(diff).dump() + "\n" : checkpoint::diff_text(diff));
  return code_of(diff.equal_values(), ExitCode::kMismatch);
}

}  // namespace

int verb_checkpoint(const CommandLine& command_line) {
  const std::string what = command_line.arguments.empty() ? "" : command_line.arguments[0];
  const size_t paths = command_line.arguments.size() - (what.empty() ? 0 : 1);
  if (what != "export" && !command_line.flags.empty())
    reject("LS1002", cat("--", command_line.flags.begin()->first, " belongs to lockstep checkpoint export"));
  if (what == "inspect" && paths == 1) return inspect_path(command_line, false);
  if (what == "verify" && paths == 1) return inspect_path(command_line, true);
  if (what == "diff" && paths == 2) return diff_paths(command_line);
  if (what == "export" && paths == 2) return export_checkpoint(command_line);
  reject("LS1004", "lockstep checkpoint needs: inspect PATH, verify PATH, diff A B, or export RUN DIR --to hf",
         "PATH is a run directory, its checkpoints/, one step-* folder, or a Hugging Face model directory");
}

}  // namespace lockstep::apps
