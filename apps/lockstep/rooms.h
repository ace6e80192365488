// The memory that the ranks of a job may take on this host, held against its plan before anything is started.
#pragma once

#include <vector>

#include "apps/lockstep/command_line.h"
#include "lockstep/program/room.h"

namespace lockstep::apps {

// memory.device_limit where it is set. Of this host, unless that stands in for it: what it has left for those of `ranks` that run
// on it, by /proc and the cgroups of this process. (What a GPU has left is known to LibTorch alone: runtime/device_room.h.)
std::vector<program::Room> rooms_here(const CommandLine& command_line, const config::RunConfig& config, int ranks);

// What every verb that trains or verifies calls before it starts ranks. twin: rank 0 also runs the one-rank twin. OutOfMemoryError
// LS4003 with the ways out where the plan does not fit.
void refuse_what_does_not_fit(const CommandLine& command_line, const config::RunConfig& config,
                              const program::Layout& layout, bool twin = false);

}  // namespace lockstep::apps
