// Running a verb that computes on several ranks.
#pragma once

#include <filesystem>

#include "apps/lockstep/command_line.h"

namespace lockstep::apps {

// True in a process that was started as one of several ranks: its parent has checked everything already.
bool is_started_rank(const CommandLine& command_line);

// The number of ranks asked for: -n, else parallel.dp, else one. EnvironmentError LS3121 where another launcher (mpirun,
// srun, torchrun) has started this process as one of several.
int ranks_of(const CommandLine& command_line, const config::RunConfig& config);

// Runs the verb here where one rank is enough or this process is a rank; else starts `ranks` copies of the program and
// waits for them. What ranks above 0 print goes to files in `log_dir`. Lost ranks are started again, `max_restarts` times
// at most; one rank is then started as a copy, too. Returns the exit code.
int run_on_ranks(const CommandLine& command_line, int ranks, const std::filesystem::path& log_dir = {},
                 int max_restarts = 0);

}  // namespace lockstep::apps
