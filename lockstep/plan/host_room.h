// What this host has left for the ranks that run on it, held against their plan.
#pragma once

#include <vector>

#include "lockstep/launch/identity.h"
#include "lockstep/plan/room.h"

namespace lockstep::plan {

// Whose plan is held against what this host has left.
struct HostRanks {
  launch::Identity first{};  // the first rank here, and with local_size how many there are; 0: only itself is known
  bool fewer_ranks = false;  // fewer ranks are a way out: nobody else has started them
  bool twin = false;         // rank 0 also runs the one-rank twin
};

// memory.device_limit where it is set. Of this host, unless that stands in for it: what it has left, by /proc and the cgroups of
// this process. (What a GPU has left is known to LibTorch alone.)
std::vector<Room> rooms_here(const config::RunConfig& config, const HostRanks& ranks);

// OutOfMemoryError LS4003 with the ways out where the plan does not fit into one of them.
void refuse_what_does_not_fit(const config::RunConfig& config, const program::Layout& layout, const HostRanks& ranks);

}  // namespace lockstep::plan
