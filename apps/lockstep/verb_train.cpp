// `lockstep train`: judges configuration, layout and data before anything starts, then runs the ranks.
#include "apps/lockstep/ranks.h"
#include "apps/lockstep/rooms.h"
#include "apps/lockstep/verbs.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/program/passes/job.h"

namespace lockstep::apps {

namespace {

int max_restarts_of(const CommandLine& command_line) {
  const int64_t restarts = command_line.integer("max-restarts", 0);
  if (restarts < 0 || restarts > 1000)
    throw ConfigError({.code = "LS1005", .what = cat("--max-restarts ", restarts, ": 0 to 1000 is needed")});
  return static_cast<int>(restarts);
}

void check_stop_after(const CommandLine& command_line) {
  const std::string text = command_line.value("stop-after");
  if (command_line.has("stop-after") && !parse_duration(text))
    throw ConfigError({.code = "LS1005",
                       .what = cat("--stop-after ", text, ": a duration with a unit is needed"),
                       .way_out = "write 3h50m, 90s or 30min"});
}

}  // namespace

int verb_train(const CommandLine& command_line) {
  refuse_words(command_line);
  config::LoadedConfig loaded = load_config(command_line);
  const int ranks = ranks_of(command_line, loaded.config);
  const int max_restarts = max_restarts_of(command_line);
  check_stop_after(command_line);
  if (!is_rank(command_line)) {  // ranks compare first what they were told: RankJob
    const program::Layout layout = program::layout_of(loaded, ranks);
    program::check_data(loaded.config, layout);
    refuse_what_does_not_fit(command_line, loaded.config, layout);
  }
  return run_on_ranks(command_line, loaded.config,
                      {.ranks = ranks,
                       .log_dir = std::filesystem::path(loaded.config.run.dir) / "logs",
                       .max_restarts = max_restarts});
}

}  // namespace lockstep::apps
