// lockstep checkpoint inspect PATH: what a step holds, and which steps of a run are whole.
#include <cstdio>

#include "apps/lockstep/runtime/verbs.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/inspect.h"

namespace lockstep::apps {

// Exit code 8 if no step is whole. Reads every byte of every step that PATH names.
int verb_checkpoint(const CommandLine& command_line) {
  if (command_line.arguments.size() != 2 || command_line.arguments[0] != "inspect")
    throw ConfigError({.code = "LS1004",
                       .what = "lockstep checkpoint needs: inspect PATH",
                       .way_out = "PATH is a run directory, its checkpoints/ or one step-* folder"});
  bool any_whole = false;
  OrderedJson steps = OrderedJson::array();
  for (const auto& path : checkpoint::steps_of(command_line.arguments[1])) {
    const checkpoint::StepReport report = checkpoint::inspect_step(path);
    any_whole = any_whole || report.whole();
    if (command_line.json) {
      steps.push_back(checkpoint::report_json(report));
    } else {
      std::fputs(checkpoint::report_text(report).c_str(), stdout);
      std::fflush(stdout);
    }
  }
  if (command_line.json) std::printf("%s\n", OrderedJson({{"ok", any_whole}, {"steps", steps}}).dump().c_str());
  return static_cast<int>(any_whole ? ExitCode::kOk : ExitCode::kCheckpoint);
}

}  // namespace lockstep::apps
