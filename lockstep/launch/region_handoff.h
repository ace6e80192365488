// How ranks of one host that no common parent of ours has started come to share a region: rank 0 makes it and hands its
// descriptor to the others through a Unix socket. Neither has a name in the file system: nothing is left behind,
// however a rank ends, and nothing of an earlier job can be found.
#pragma once

#include <chrono>
#include <string>

#include "lockstep/launch/shared_region.h"

namespace lockstep::launch {

struct RegionHandoff {
  std::string job;      // the same in all ranks of this start of the job, and in no other job of this host
  std::string token{};  // the same too; a rank that brings another one is turned away
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds deadline{300000};  // of all ranks' coming
};

// Blocks until all ranks have the region; a world of one gets one at once. The socket is an abstract one of this
// network namespace; both sides see that the other belongs to the same user and sees the same processes. Errors:
//   PeerLostError LS3123   ranks that did not come before the deadline or ended meanwhile, by number
//   EnvironmentError LS3124  this rank brought another token, or met another user or another process namespace
//   ConfigError LS3005     the ranks do not agree on the size of the world, or one number came twice
//   EnvironmentError LS3110  the system refused the region or the socket
SharedRegion share_region(const RegionHandoff& handoff);

}  // namespace lockstep::launch
