// What the ranks of a host say of themselves in their shared region, read by one that gives up waiting.
#pragma once

#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/region_layout.h"
#include "lockstep/comm/waits.h"
#include "lockstep/launch/shared_region.h"

namespace lockstep::comm {

// Its process has ended while it was in the job. False for a rank of this process, a thread of which it is.
bool has_died(const launch::SharedRegion& region, int rank);

// Ranks are world ranks. Looks over all groups of the region: for messages, never on the way of a call.
class SharedWaits {
 public:
  explicit SharedWaits(const launch::SharedRegion& region);

  // Of a group: where its block lies.
  uint64_t key_of(const GroupBlock& block) const { return static_cast<uint64_t>(block.base - region_.data()); }
  // See follow_waits(). A rank that has died or is stopped is missing, whatever it said last.
  std::vector<Waiting> follow(const Waiting& first) const;
  // As a member of one group, and of that of its groups where it did something last.
  MemberReport report(int rank, const Member& member) const;
  MemberReport report(int rank) const;

 private:
  const RankRecord& record(int rank) const;
  bool stopped(int rank) const;
  // Calls f(block, member) for each group that the rank is a member of.
  template <typename F>
  void each_group_of(int rank, const F& f) const;
  int waits_for(const GroupBlock& block, int member) const;
  std::optional<GroupWait> kept_by_of(const Waiting& wait) const;

  const launch::SharedRegion& region_;
};

}  // namespace lockstep::comm
