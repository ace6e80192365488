#include "apps/lockstep/ranks.h"

#include <algorithm>

#include "apps/lockstep/runtime_call.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/local_launcher.h"

namespace lockstep::apps {

bool is_started_rank(const CommandLine& command_line) { return command_line.identity.region_fd >= 0; }

int ranks_of(const CommandLine& command_line, const config::RunConfig& config) {
  const launch::Identity& identity = command_line.identity;
  if (is_started_rank(command_line)) return identity.world_size;
  if (identity.world_size > 1)
    throw EnvironmentError(
        {.code = "LS3121",
         .what = cat("this is rank ", identity.rank, " of ", identity.world_size, " (", identity.source,
                     "), and no backend joins ranks that another launcher has started"),
         .way_out = cat("start one process; it starts the ranks of this host itself: lockstep ", command_line.verb,
                        " ... -n ", identity.world_size)});
  return command_line.ranks.value_or(std::max(1, config.parallel.dp));
}

int run_on_ranks(const CommandLine& command_line, int ranks, const std::filesystem::path& log_dir,
                 int max_restarts) {
  if (is_started_rank(command_line) || (ranks == 1 && max_restarts == 0)) return call_runtime(command_line);
  return launch::launch_local(
      {.ranks = ranks, .arguments = command_line.written, .log_dir = log_dir, .max_restarts = max_restarts});
}

}  // namespace lockstep::apps
