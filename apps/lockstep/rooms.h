// The memory that the ranks of a job may take on this host, held against its plan before anything is started.
#pragma once

#include <vector>

#include "apps/lockstep/command_line.h"
#include "lockstep/plan/room.h"

namespace lockstep::apps {

// As plan::rooms_here, for those of `ranks` that run on this host.
std::vector<plan::Room> rooms_here(const CommandLine& command_line, const config::RunConfig& config, int ranks);

// What every verb that trains or verifies calls before it starts ranks; ranks of another launcher compare first what they were
// told (runtime/job.h). twin: rank 0 also runs the one-rank twin. OutOfMemoryError LS4003 with the ways out where the plan does not
// fit.
void refuse_what_does_not_fit(const CommandLine& command_line, const config::RunConfig& config,
                              const program::Layout& layout, bool twin = false);

}  // namespace lockstep::apps
