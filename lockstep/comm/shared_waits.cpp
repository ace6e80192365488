#include "lockstep/comm/shared_waits.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "lockstep/comm/process.h"
#include "lockstep/comm/shared_group.h"

namespace lockstep::comm {

bool has_died(const launch::SharedRegion& region, int rank) {
  const RankRecord& record = header_of(region).ranks[static_cast<size_t>(rank)];
  const int32_t pid = record.pid.load();
  return record.state.load() == RankState::kJoined && pid != getpid() && process_ended(pid);
}

SharedWaits::SharedWaits(const launch::SharedRegion& region) : region_(region) {}

const RankRecord& SharedWaits::record(int rank) const { return header_of(region_).ranks[static_cast<size_t>(rank)]; }

bool SharedWaits::stopped(int rank) const {
  return record(rank).state.load() == RankState::kJoined && process_stopped(record(rank).pid.load());
}

template <typename F>
void SharedWaits::each_group_of(int rank, const F& f) const {
  const RegionHeader& header = header_of(region_);
  const int64_t ring_bytes = launch::ring_bytes(header.world_size.load());
  for (const GroupSlot& slot : header.groups) {
    if (slot.offset.load() <= 0) continue;
    const GroupBlock block{.base = region_.data() + slot.offset.load(), .size = slot.size.load(), .ring_bytes = ring_bytes};
    for (int member = 0; member < block.size; ++member)
      if (block.member(member).world_rank.load() == rank + 1) f(block, member);
  }
}

// A member that sleeps still says for whom it waits, though the bytes have come.
int SharedWaits::waits_for(const GroupBlock& block, int member) const {
  const int said = block.member(member).waits_for.load();
  if (said == 0) return -1;
  const int peer = std::abs(said) - 1;
  const Ring& ring = said > 0 ? block.ring(peer, member) : block.ring(member, peer);
  const auto in_ring = static_cast<int64_t>(ring.head.load() - ring.tail.load());
  const bool could_go_on = said > 0 ? in_ring > 0 : in_ring < block.ring_bytes;
  return could_go_on ? -1 : block.member(peer).world_rank.load() - 1;
}

// Who has closed a group says there for whom it waits only where it has given up waiting.
std::optional<GroupWait> SharedWaits::kept_by_of(const Waiting& wait) const {
  const int rank = wait.waits_for;
  if (has_died(region_, rank) || stopped(rank)) return std::nullopt;
  std::vector<GroupWait> open, closed;
  bool was_closed = false;
  each_group_of(rank, [&](const GroupBlock& block, int member) {
    const Member& about = block.member(member);
    const bool left = about.left.load() != 0;
    was_closed |= left && key_of(block) == wait.group;
    (left ? closed : open)
        .push_back({.group = key_of(block),
                    .waits_for = waits_for(block, member),
                    .awaited = about.awaited.load() > 0,
                    .call = about.call.get().text()});
  });
  const auto given_up = kept_by(closed, wait.group);
  return given_up || was_closed ? given_up : kept_by(open, wait.group);
}

std::vector<Waiting> SharedWaits::follow(const Waiting& first) const {
  return follow_waits(first, [this](const Waiting& wait) { return kept_by_of(wait); });
}

MemberReport SharedWaits::report(int rank, const Member& member) const {
  using State = MemberReport::State;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t ago = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() - member.changed_at.load();
  MemberReport report{.rank = rank,
                      .pid = record(rank).pid.load(),
                      .sequence = member.sequence.load(),
                      .inside = member.inside.load() != 0,
                      .call = member.call.get().text(),
                      .seconds_ago = static_cast<double>(ago) * 1e-9,
                      .stopped = stopped(rank)};
  if (has_died(region_, rank))
    report.state = State::kDied;
  else if (record(rank).state.load() == RankState::kUnknown)
    report.state = State::kNeverJoined;
  else if (member.left.load() != 0 || record(rank).state.load() == RankState::kLeft)
    report.state = State::kClosed;
  return report;
}

MemberReport SharedWaits::report(int rank) const {
  const Member* latest = nullptr;
  each_group_of(rank, [&](const GroupBlock& block, int member) {
    const Member& about = block.member(member);
    if (!latest || about.changed_at.load() > latest->changed_at.load()) latest = &about;
  });
  static const Member none{};
  MemberReport about = report(rank, latest ? *latest : none);
  const bool here = record(rank).state.load() == RankState::kJoined;
  if (here && about.state == MemberReport::State::kClosed) about.state = MemberReport::State::kThere;  // one group of many
  return about;
}

}  // namespace lockstep::comm
