#include "lockstep/comm/shared_board.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

constexpr int kFewestLooks = 64;   // about 2 us
constexpr int kMostLooks = 2048;   // about 50 us: what a sleep and the waking cost
constexpr int kYields = 4;

}  // namespace

SharedBoard::SharedBoard(const SharedGroup& group)
    : group_(group),
      crowded_(group.ranks_of_host() > sysconf(_SC_NPROCESSORS_ONLN)),
      looks_(kMostLooks) {}

void SharedBoard::meet(std::chrono::milliseconds patience) {
  ++round_;
  Member& me = group_.me();
  me.notices.store(round_);
  if (me.readers_asleep.load() != 0) wake_all(me.notices);
  for (int peer = 0; peer < group_.size(); ++peer)
    if (peer != group_.rank() && !there(peer)) wait_for(peer, patience);
}

void SharedBoard::wait_for(int peer, std::chrono::milliseconds patience) {
  if (comes_soon(peer)) {
    looks_ = std::min(looks_ * 2, kMostLooks);
    return;
  }
  looks_ = std::max(looks_ / 2, kFewestLooks);
  group_.me().waits_for.store(peer + 1);
  sleep_until(peer, patience);
  group_.me().waits_for.store(0);
}

bool SharedBoard::comes_soon(int peer) {
  if (crowded_) {
    for (int turn = 0; turn < kYields; ++turn) {
      sched_yield();
      if (there(peer)) return true;
    }
    return false;
  }
  for (int look = 0; look < looks_; ++look) {
    relax();
    if (there(peer)) return true;
  }
  return false;
}

// Either we see the notice, or who puts it up sees the sleeper, or the kernel sees the changed word.
void SharedBoard::sleep_until(int peer, std::chrono::milliseconds patience) {
  const Deadline now = std::chrono::steady_clock::now();
  SharedGroup::Wait wait{.began = now, .deadline = now + patience};
  Member& member = group_.member(peer);
  while (!there(peer)) {
    check_same_call(peer);
    group_.look_around(wait, peer);
    if (wait.gone) continue;
    member.readers_asleep.fetch_add(1);
    const uint32_t seen = member.notices.load();
    if (!there(peer)) sleep_on(member.notices, seen, SharedGroup::slice(wait));
    member.readers_asleep.fetch_sub(1);
  }
}

// A peer that has come as far as we and makes its call elsewhere would never come to the board.
void SharedBoard::check_same_call(int peer) const {
  const Member& member = group_.member(peer);
  if (member.sequence.load() < group_.sequence() || member.board_sequence.load() >= group_.sequence() || there(peer))
    return;
  throw InternalError(cat("ranks of a group are in different calls:\n  member ", group_.rank(), ": ", group_.call().text(),
                          "\n  member ", peer, ": ", member.call.get().text()));
}

}  // namespace lockstep::comm
