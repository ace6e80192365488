#include "apps/lockstep/ranks.h"

#include <algorithm>

#include "apps/lockstep/runtime_call.h"
#include "lockstep/launch/local_launcher.h"

namespace lockstep::apps {

bool is_started_rank(const CommandLine& command_line) { return command_line.identity.region_fd >= 0; }

int ranks_of(const CommandLine& command_line, const config::RunConfig& config) {
  if (is_started_rank(command_line)) return command_line.identity.world_size;
  return command_line.ranks.value_or(std::max(1, config.parallel.dp));
}

int run_on_ranks(const CommandLine& command_line, int ranks, const std::filesystem::path& log_dir,
                 int max_restarts) {
  if (is_started_rank(command_line) || (ranks == 1 && max_restarts == 0)) return call_runtime(command_line);
  return launch::launch_local(
      {.ranks = ranks, .arguments = command_line.written, .log_dir = log_dir, .max_restarts = max_restarts});
}

}  // namespace lockstep::apps
