// `lockstep train`: judges configuration, layout and data before anything starts, then runs the ranks.
#include "apps/lockstep/ranks.h"
#include "apps/lockstep/verbs.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/predicted_step.h"
#include "lockstep/program/passes/job.h"

namespace lockstep::apps {

namespace {

void check_stop_after(const CommandLine& command_line) {
  const std::string text = command_line.value("stop-after");
  if (command_line.has("stop-after") && !parse_duration(text))
    reject("LS1005", cat("--stop-after ", text, ": a duration with a unit is needed"), "write 3h50m, 90s or 30min");
}

// What a machine file says is told later; what is wrong with it, now.
void check_machine(const CommandLine& command_line, config::LoadedConfig loaded, int ranks) {
  const std::string file = command_line.value("machine");
  if (!command_line.has("machine")) return;
  plan::predicted_step(file, program::layout_of(loaded, ranks), loaded.config.train.device, loaded.config.train.threads);
}

}  // namespace

int verb_train(const CommandLine& command_line) {
  refuse_words(command_line);
  config::LoadedConfig loaded = load_config(command_line);
  const int ranks = ranks_of(command_line, loaded.config);
  const int max_restarts = static_cast<int>(command_line.integer_within("max-restarts", 0, 0, 1000));
  check_stop_after(command_line);
  judge(command_line, loaded, ranks);
  check_machine(command_line, loaded, ranks);
  return run_on_ranks(command_line, loaded.config,
                      {.ranks = ranks,
                       .log_dir = std::filesystem::path(loaded.config.run.dir) / "logs",
                       .max_restarts = max_restarts});
}

}  // namespace lockstep::apps
