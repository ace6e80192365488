// The board of a group in shared memory. A member that waits looks for as long as looking has lately been enough, at
// most some 50 us, and then sleeps; where the host has more ranks than cores it gives its core to a peer at once.
#pragma once

#include "lockstep/comm/board.h"
#include "lockstep/comm/shared_group.h"

namespace lockstep::comm {

class SharedBoard : public Board {
 public:
  explicit SharedBoard(const SharedGroup& group);

  size_t capacity() const override { return static_cast<size_t>(group_.block().notice_bytes()); }
  std::byte* mine() override { return group_.block().notice(group_.rank(), round_ + 1); }
  void meet(std::chrono::milliseconds patience) override;
  const std::byte* of(int member) const override { return group_.block().notice(member, round_); }

 private:
  bool there(int peer) const {
    return static_cast<int32_t>(group_.member(peer).notices.load(std::memory_order_acquire) - round_) >= 0;
  }
  void wait_for(int peer, std::chrono::milliseconds patience);
  bool comes_soon(int peer);
  void sleep_until(int peer, std::chrono::milliseconds patience);
  void check_same_call(int peer) const;

  const SharedGroup& group_;
  uint32_t round_ = 0;
  bool crowded_;  // more ranks than cores
  int looks_;     // before sleeping
};

}  // namespace lockstep::comm
