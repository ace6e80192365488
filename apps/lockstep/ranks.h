// Running a verb that computes on several ranks.
#pragma once

#include <filesystem>

#include "apps/lockstep/command_line.h"
#include "lockstep/plan/room.h"

namespace lockstep::apps {

// True in a process that is one of several ranks, whoever has started it.
bool is_rank(const CommandLine& command_line);

// The number of ranks of the job: what the launcher that started this process says; else -n, else parallel.dp, else
// one. In a Kubernetes pod the ranks of a pod times the pods. ConfigError LS1005 where ranks that are started already
// are asked to start more (-n, --max-restarts).
int ranks_of(const CommandLine& command_line, const config::RunConfig& config);

// Of `ranks` those that run on this host; what it has left is not asked.
plan::Room ranks_here(const CommandLine& command_line, int ranks);

// What a verb that trains or verifies judges before it starts ranks: layout, data, the memory of this host. In a rank nothing: ranks
// of another launcher compare first what they were told (runtime/job.h). twin: rank 0 also runs the one-rank twin. Errors of
// program::layout_of, program::check_data and plan::refuse_what_does_not_fit.
void judge(const CommandLine& command_line, config::LoadedConfig& loaded, int ranks, bool twin = false);

struct RankOptions {
  int ranks = 1;                    // as ranks_of
  std::filesystem::path log_dir{};  // what ranks above 0 of this host print goes to files there
  int max_restarts = 0;             // lost ranks are started again so often; one rank is then started as a copy, too
};

// Runs the verb here where one rank is enough or this process is a rank; else starts copies of the program and waits
// for them. Returns the exit code. EnvironmentError LS3121 where no backend joins the ranks, before any is started.
int run_on_ranks(const CommandLine& command_line, const config::RunConfig& config, const RankOptions& options);

}  // namespace lockstep::apps
