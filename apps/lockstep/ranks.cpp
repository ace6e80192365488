#include "apps/lockstep/ranks.h"

#include <algorithm>

#include "apps/lockstep/runtime_call.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/launch/backend_choice.h"
#include "lockstep/launch/compute_threads.h"
#include "lockstep/launch/local_launcher.h"
#include "lockstep/program/passes/job.h"

namespace lockstep::apps {
namespace {

bool is_pod(const launch::Identity& identity) {
  return identity.launcher == launch::Launcher::kPods && !identity.alone();
}

[[noreturn]] void refuse_flag(const CommandLine& command_line, const std::string& flag, const std::string& why) {
  const launch::Identity& identity = command_line.identity;
  reject("LS1005", cat(flag, ": ", why, " (", identity.source, ")"), cat("leave ", flag.substr(0, flag.find(' ')), " out"));
}

// Its parent, our own launcher, has checked everything already.
bool is_checked(const CommandLine& command_line) { return command_line.identity.started_by_us(); }

// The first of `ranks` that runs on this host, and with local_size how many do; 0 where nobody tells, and then it is this one.
launch::Identity first_rank_here(const CommandLine& command_line, int ranks) {
  launch::Identity identity = command_line.identity;
  if (is_rank(command_line)) {
    if (identity.local_size > 0) identity.rank -= identity.local_rank;
    return identity;
  }
  const int hosts = is_pod(identity) ? identity.world_size : 1;
  const int host = is_pod(identity) ? identity.rank : 0;
  identity.local_size = ranks / hosts;
  identity.rank = host * identity.local_size;
  identity.world_size = ranks;
  identity.local_rank = 0;
  return identity;
}

}  // namespace

bool is_rank(const CommandLine& command_line) {
  const launch::Identity& identity = command_line.identity;
  return identity.started_by_us() || (!identity.alone() && !is_pod(identity));
}

int ranks_of(const CommandLine& command_line, const config::RunConfig& config) {
  const launch::Identity& identity = command_line.identity;
  if (!is_checked(command_line) && !identity.alone() && command_line.integer("max-restarts", 0) > 0)
    refuse_flag(command_line, "--max-restarts " + command_line.value("max-restarts"),
                "whoever has started the ranks must start them again");
  if (is_pod(identity)) return identity.world_size * command_line.ranks.value_or(1);
  if (!is_rank(command_line)) return command_line.ranks.value_or(config::ranks_wanted(config));
  if (command_line.ranks && !is_checked(command_line))
    refuse_flag(command_line, cat("-n ", *command_line.ranks),
                cat("this is one of ", identity.world_size, " ranks already"));
  return identity.world_size;
}

plan::Room ranks_here(const CommandLine& command_line, int ranks) {
  const launch::Identity first = first_rank_here(command_line, ranks);
  return {.first_rank = first.rank, .ranks = std::max(1, first.local_size), .fewer_ranks = command_line.identity.alone()};
}

void judge(const CommandLine& command_line, config::LoadedConfig& loaded, int ranks, bool twin) {
  if (is_rank(command_line)) return;
  program::Layout layout = program::layout_of(loaded, ranks);
  program::check_data(loaded.config, layout);
  layout.threads = launch::compute_threads(loaded.config.train.threads, first_rank_here(command_line, ranks));
  plan::Room here = ranks_here(command_line, ranks);
  here.twin = twin;
  plan::refuse_what_does_not_fit(loaded.config, layout, here);
}

int run_on_ranks(const CommandLine& command_line, const config::RunConfig& config, const RankOptions& options) {
  if (is_rank(command_line)) {
    // Ranks of one host compare first what they were told (join_world).
    if (!command_line.identity.on_one_host()) launch::choose_backend(command_line.identity, config);
    return call_runtime(command_line);
  }
  const launch::Identity first = first_rank_here(command_line, options.ranks);  // as it will be told
  if (options.ranks == 1 && options.max_restarts == 0) return call_runtime(command_line);
  launch::choose_backend(first, config);
  return launch::launch_local({.ranks = first.local_size,
                               .arguments = command_line.written,
                               .log_dir = options.log_dir,
                               .max_restarts = options.max_restarts,
                               .first = first});
}

}  // namespace lockstep::apps
