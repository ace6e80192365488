// Ordered sets of ranks, and what is said when one of them does not come.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/waits.h"

namespace lockstep::comm {

// "dp[0,1,2]"
std::string group_name(const std::string& axis, const std::vector<int>& ranks);

// The place of world rank `rank` in the group. A group of ranks that are not all different ranks of the world, `rank`
// among them, breaks an invariant.
int group_rank(const std::string& axis, const std::vector<int>& ranks, int rank, int world_size);

// What a rank knows of a member of the group that it waits for, or of itself.
struct MemberReport {
  enum class State { kThere, kNeverJoined, kNeverMadeGroup, kSilent, kClosed, kDied };
  int rank = 0;  // in the world
  State state = State::kThere;
  int64_t pid = 0;              // where it died or is stopped
  int64_t sequence = 0;         // collectives entered on this group
  bool inside = false;          // of the last call
  std::string call{};           // the last one; empty: none so far, or not known of one that is dead or silent
  double seconds_ago = 0;       // when it entered or left it
  bool stopped = false;         // its process is, by SIGSTOP or a debugger
};

// LS3002: "rank 2 never entered all_reduce #4 'grad' of group dp[0,1,2]; last seen when it left all_reduce #3 ...".
// `chain`: how this rank comes to wait for `lost` (follow_waits); where its last wait is on another group than this
// rank's own, `lost` tells of all groups: "rank 2 keeps rank 1 waiting in recv #7 'recv_b stage 1' from rank 2; ...".
PeerLostError lost_member(const MemberReport& lost, const MemberReport& own, const std::string& group,
                          double waited_seconds, const std::vector<Waiting>& chain = {});

// LS3003: rank `by` has stopped the job while `own` was in its call.
PeerLostError stopped_by(int by, const std::string& reason, const MemberReport& own, const std::string& group);

}  // namespace lockstep::comm
