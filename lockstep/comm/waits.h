// Who waits for whom, over all groups of the job. A rank that gives up waiting follows it to the rank that is missing,
// which may be in none of its own groups: in a pipeline a rank waits for its neighbour, who only waits too.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::comm {

// Rank `rank` waits for rank `waits_for` (world ranks) on the group of key `group`, in `call`.
struct Waiting {
  int rank = 0;
  int waits_for = -1;
  uint64_t group = 0;
  std::string call{};  // "recv #3 'recv_f stage 1' from rank 0"
};

// What a rank says of one of its groups.
struct GroupWait {
  uint64_t group = 0;
  int waits_for = -1;    // world rank; -1: its calls there, if any, wait for nobody
  bool awaited = false;  // a thread of the rank cannot go on until a call there is done
  std::string call{};
};

// Why a rank does not come to where others wait for it on `group`: its wait on that group; else that on one that a
// thread of it is kept by, calls in flight beside which it goes on do not count. None: it is kept by nobody.
std::optional<GroupWait> kept_by(const std::vector<GroupWait>& waits, uint64_t group);

// From `first` on, whom the one who is waited for waits for itself; the last one's `waits_for` is missing. In a circle,
// which nobody is to blame for, `first` alone. `next(w)`: why rank w.waits_for does not come to w.group.
std::vector<Waiting> follow_waits(const Waiting& first, const std::function<std::optional<GroupWait>(const Waiting&)>& next);

// "rank 0 waits for rank 1 (recv #2 'a' from rank 1), which waits for rank 2 (recv #7 'b' from rank 2)".
std::string waits_text(const std::vector<Waiting>& chain);

}  // namespace lockstep::comm
