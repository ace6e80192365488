#include "lockstep/comm/shared_group.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/shared_waits.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

RegionHeader& header_of(const launch::SharedRegion& region) {
  return *reinterpret_cast<RegionHeader*>(region.data());
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void sleep_on(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::milliseconds time) {
  const timespec limit{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(time).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// The order of the two accesses, here and where a member goes to sleep, lets no wake-up get lost: either we see the
// sleeper, or the kernel sees the changed bell.
void ring_bell(Member& member) {
  member.bell.fetch_add(1);
  if (member.sleeping.load() != 0) wake_all(member.bell);
}

SharedGroup::SharedGroup(std::shared_ptr<const launch::SharedRegion> region, Options options)
    : region_(std::move(region)), options_(std::move(options)) {
  for (int rank = 0; rank < size(); ++rank) member(rank).world_rank.store(world_rank(rank) + 1);
}

void SharedGroup::publish(const Progress& progress) {
  Member& mine = me();
  if (progress.on_board) mine.board_sequence.store(progress.sequence);  // before `sequence`: SharedBoard reads them back to front
  mine.sequence.store(progress.sequence);
  mine.inside.store(progress.inside);
  mine.changed_at.store(now_ns());
  if (progress.call != call_) {
    call_ = progress.call;
    mine.call.set(progress.call);
  }
  sequence_ = progress.sequence;
  if (options_.watch) options_.watch(progress);
}

void SharedGroup::cancel() {
  cancelled_ = true;
  ring_bell(me());
  for (int peer = 0; peer < size(); ++peer) wake_all(member(peer).notices);
}

void SharedGroup::close() {
  me().left.store(1);
  wake_all(me().notices);
  for (int peer = 0; peer < size(); ++peer) ring_bell(member(peer));
}

void SharedGroup::look_around(Wait& wait, int peer) const {
  check_abort();
  if (Clock::now() >= wait.deadline || wait.gone) throw lost(peer, wait.began);
  wait.gone = gone(peer);
}

std::chrono::milliseconds SharedGroup::slice(const Wait& wait) {
  using std::chrono::milliseconds;
  return std::clamp(std::chrono::ceil<milliseconds>(wait.deadline - Clock::now()), milliseconds(0), kSlice);
}

bool SharedGroup::gone(int rank) const {
  return member(rank).left.load() != 0 || record(rank).state.load() == RankState::kLeft || has_died(*region_, world_rank(rank));
}

void SharedGroup::check_abort() const {
  if (cancelled_)
    throw PeerLostError({.code = "LS3003", .what = cat(call_.text(), " of group ", options_.name, " was cut short")});
  const RegionHeader& header = header_of(*region_);
  if (header.abort.load() != AbortState::kReadable) return;
  throw stopped_by(header.abort_rank.load(), header.abort_reason.get(), report(rank()), options_.name);
}

void SharedGroup::wait_for(int peer, bool its_bytes) {
  me().waits_for.store(its_bytes ? peer + 1 : -(peer + 1));
}

PeerLostError SharedGroup::lost(int peer, Deadline began) const {
  const SharedWaits waits(*region_);
  const uint64_t key = waits.key_of(block());
  const std::vector<Waiting> chain =
      waits.follow({.rank = world_rank(rank()), .waits_for = world_rank(peer), .group = key, .call = call_.text()});
  const int at_fault = chain.back().waits_for;
  const auto found = std::find(options_.ranks.begin(), options_.ranks.end(), at_fault);
  const MemberReport about = chain.back().group == key && found != options_.ranks.end()
                                 ? report(static_cast<int>(found - options_.ranks.begin()))
                                 : waits.report(at_fault);
  return lost_member(about, report(rank()), options_.name, std::chrono::duration<double>(Clock::now() - began).count(), chain);
}

MemberReport SharedGroup::report(int rank) const {
  MemberReport report = SharedWaits(*region_).report(world_rank(rank), member(rank));
  if (rank == options_.rank) report.call = call_.text();
  return report;
}

}  // namespace lockstep::comm
