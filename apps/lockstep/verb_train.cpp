// `lockstep train`: judges configuration, layout and data before anything starts, then runs the ranks.
#include "apps/lockstep/ranks.h"
#include "apps/lockstep/verbs.h"
#include "lockstep/program/job.h"

namespace lockstep::apps {

int verb_train(const CommandLine& command_line) {
  const config::LoadedConfig loaded = load_config(command_line);
  const int ranks = ranks_of(command_line, loaded.config);
  if (!is_started_rank(command_line)) program::check_data(loaded.config, program::layout_of(loaded, ranks));
  return run_on_ranks(command_line, ranks, std::filesystem::path(loaded.config.run.dir) / "logs");
}

}  // namespace lockstep::apps
