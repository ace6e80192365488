// `lockstep plan --runs FILE --json` and `--evidence`: published runs predicted, and held against what was measured.
#pragma once

#include "apps/lockstep/command_line.h"

namespace lockstep::apps {

// Of these two flags; returns the exit code. ConfigError LS1003 where the file of runs is not found or nothing is asked of it, LS1005 for a
// picture of another form; errors of read_published_runs.
int plan_evidence(const CommandLine& command_line);

}  // namespace lockstep::apps
