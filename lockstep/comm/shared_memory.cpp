#include "lockstep/comm/shared_memory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exception>
#include <thread>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/process.h"
#include "lockstep/comm/region_layout.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSlice{50};     // of sleep, between two looks at the peers' health
constexpr int kSpins = 64;             // before sleeping; more only takes a core from those who compute
constexpr size_t kPiece = 128 * 1024;  // moved at once, so that writer and reader work at the same time

RegionHeader& header_of(const launch::SharedRegion& region) {
  return *reinterpret_cast<RegionHeader*>(region.data());
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void sleep_on(std::atomic<uint32_t>& word, uint32_t seen, milliseconds time) {
  const timespec limit{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(time).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

// The order of the two accesses, here and in Waiter::pause, lets no wake-up get lost: either we see the sleeper, or the
// kernel sees the changed bell.
void ring_bell(Member& member) {
  member.bell.fetch_add(1);
  if (member.sleeping.load() != 0) syscall(SYS_futex, &member.bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

size_t round_to_line(size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

// A message on its way into or out of a ring. Every message begins on a line, so that elements are aligned and never
// wrap.
class Outgoing {
 public:
  Outgoing() = default;
  Outgoing(const GroupBlock& block, int from, int to, std::span<const std::byte> bytes)
      : ring_(&block.ring(from, to)), data_(block.ring_data(from, to)), capacity_(block.ring_bytes), left_(bytes) {}

  bool done() const { return left_.empty(); }
  // Moves one piece if there is room for any.
  bool advance() {
    if (left_.empty()) return false;
    const uint64_t head = ring_->head.load(std::memory_order_relaxed);
    const size_t at = head % capacity_;
    const size_t room = capacity_ - static_cast<size_t>(head - ring_->tail.load(std::memory_order_acquire));
    const size_t count = std::min({left_.size(), room, capacity_ - at, kPiece});
    if (count == 0) return false;
    std::memcpy(data_ + at, left_.data(), count);
    left_ = left_.subspan(count);
    ring_->head.store(head + round_to_line(count), std::memory_order_release);
    return true;
  }

 private:
  Ring* ring_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  std::span<const std::byte> left_;
};

class Incoming {
 public:
  Incoming() = default;
  Incoming(const GroupBlock& block, int from, int to, size_t size)
      : ring_(&block.ring(from, to)), data_(block.ring_data(from, to)), capacity_(block.ring_bytes), size_(size) {}

  bool done() const { return offset_ == size_; }
  template <typename Consume>
  bool advance(const Consume& consume) {
    if (done()) return false;
    const uint64_t tail = ring_->tail.load(std::memory_order_relaxed);
    const size_t at = tail % capacity_;
    const size_t there = static_cast<size_t>(ring_->head.load(std::memory_order_acquire) - tail);
    const size_t count = std::min({size_ - offset_, there, capacity_ - at, kPiece});
    if (count == 0) return false;
    consume(std::span<const std::byte>(data_ + at, count), offset_);
    offset_ += count;
    ring_->tail.store(tail + round_to_line(count), std::memory_order_release);
    return true;
  }

 private:
  Ring* ring_ = nullptr;
  const std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  size_t size_ = 0;
  size_t offset_ = 0;
};

auto store_in(std::span<std::byte> bytes) {
  return [bytes](std::span<const std::byte> piece, size_t offset) {
    std::memcpy(bytes.data() + offset, piece.data(), piece.size());
  };
}

class SharedMemoryTransport : public Transport {
 public:
  SharedMemoryTransport(std::shared_ptr<const launch::SharedRegion> region, GroupBlock block, std::vector<int> ranks,
                        int rank, std::string name, std::function<void(const Progress&)> watch)
      : region_(std::move(region)),
        block_(block),
        ranks_(std::move(ranks)),
        rank_(rank),
        name_(std::move(name)),
        watch_(std::move(watch)) {}
  ~SharedMemoryTransport() override {
    // While an exception unwinds, its reason is still to be told by World::abort: "closed the group" must not come
    // first.
    if (std::uncaught_exceptions() > exceptions_at_start_) return;
    me().left.store(1);
    for (int peer = 0; peer < size(); ++peer) ring_bell(block_.member(peer));
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  std::string backend() const override { return "shared_memory"; }

  void send(int peer, std::span<const std::byte> bytes, Deadline deadline) override {
    exchange(
        peer, bytes, -1, 0, [](std::span<const std::byte>, size_t) {}, deadline);
  }
  void recv(int peer, std::span<std::byte> bytes, Deadline deadline) override {
    exchange(-1, {}, peer, bytes.size(), store_in(bytes), deadline);
  }
  void send_recv(int to, std::span<const std::byte> out, int from, std::span<std::byte> in,
                 Deadline deadline) override {
    exchange(to, out, from, in.size(), store_in(in), deadline);
  }
  void send_recv(int to, std::span<const std::byte> out, int from, size_t in_size, const Consumer& consume,
                 Deadline deadline) override {
    exchange(to, out, from, in_size, consume, deadline);
  }

  void publish(const Progress& progress) override {
    call_ = progress.call;
    me().sequence.store(progress.sequence);
    me().inside.store(progress.inside);
    me().changed_at.store(now_ns());
    me().call.set(progress.call);
    if (watch_) watch_(progress);
  }

  void cancel() override {
    cancelled_ = true;
    ring_bell(me());
  }

 private:
  Member& me() const { return block_.member(rank_); }

  template <typename Consume>
  void exchange(int to, std::span<const std::byte> out, int from, size_t in_size, const Consume& consume,
                Deadline deadline) {
    Outgoing outgoing;
    Incoming incoming;
    if (to >= 0) outgoing = Outgoing(block_, rank_, to, out);
    if (from >= 0) incoming = Incoming(block_, from, rank_, in_size);
    Wait wait{.began = Clock::now(), .deadline = deadline};
    while (!outgoing.done() || !incoming.done()) {
      const uint32_t seen = me().bell.load();
      const bool sent = outgoing.advance();
      const bool received = incoming.advance(consume);
      if (sent) ring_bell(block_.member(to));
      if (received) ring_bell(block_.member(from));
      if (sent || received) {
        if (wait.spins > kSpins) me().waits_for.store(0);
        wait = {.began = wait.began, .deadline = deadline};
      } else {
        pause(wait, incoming.done() ? to : from, seen);
      }
    }
  }

  struct Wait {
    Deadline began;
    Deadline deadline;
    int spins = 0;
    bool lost = false;  // the peer is gone; what it left in the ring is still read
  };

  void pause(Wait& wait, int peer, uint32_t seen) {
    if (++wait.spins <= kSpins) return relax();
    me().waits_for.store(peer + 1);
    const Deadline now = Clock::now();
    check_abort();
    if (now >= wait.deadline) throw lost(peer, wait.began);
    if (wait.lost) throw lost(peer, wait.began);
    wait.lost = gone(peer);
    if (wait.lost) return;
    const milliseconds left = std::chrono::ceil<milliseconds>(wait.deadline - now);
    me().sleeping.store(1);
    if (me().bell.load() == seen) sleep_on(me().bell, seen, std::min(kSlice, left));
    me().sleeping.store(0);
  }

  const RankRecord& record(int member) const {
    return header_of(*region_).ranks[static_cast<size_t>(world_rank(member))];
  }
  int world_rank(int member) const { return ranks_[static_cast<size_t>(member)]; }

  bool died(int member) const {
    const int32_t pid = record(member).pid.load();
    return record(member).state.load() == RankState::kJoined && pid != getpid() && process_ended(pid);
  }
  bool gone(int member) const {
    return block_.member(member).left.load() != 0 || record(member).state.load() == RankState::kLeft || died(member);
  }

  void check_abort() const {
    if (cancelled_) throw PeerLostError({.code = "LS3003", .what = cat(call_, " of group ", name_, " was cut short")});
    const RegionHeader& header = header_of(*region_);
    if (header.abort.load() != AbortState::kReadable) return;
    throw stopped_by(header.abort_rank.load(), header.abort_reason.get(), report(rank_), name_);
  }

  PeerLostError lost(int peer, Deadline began) const {
    const int member =
        member_at_fault(peer, size(), [this](int other) { return block_.member(other).waits_for.load() - 1; });
    return lost_member(report(member), report(rank_), name_,
                       std::chrono::duration<double>(Clock::now() - began).count());
  }

  MemberReport report(int rank) const {
    using State = MemberReport::State;
    const Member& member = block_.member(rank);
    MemberReport report{.rank = world_rank(rank),
                        .pid = record(rank).pid.load(),
                        .sequence = member.sequence.load(),
                        .inside = member.inside.load() != 0,
                        .call = rank == rank_ ? call_ : member.call.get(),
                        .seconds_ago = static_cast<double>(now_ns() - member.changed_at.load()) * 1e-9};
    if (died(rank))
      report.state = State::kDied;
    else if (record(rank).state.load() == RankState::kUnknown)
      report.state = State::kNeverJoined;
    else if (member.left.load() != 0 || record(rank).state.load() == RankState::kLeft)
      report.state = State::kClosed;
    return report;
  }

  std::shared_ptr<const launch::SharedRegion> region_;
  GroupBlock block_;
  std::vector<int> ranks_;  // world ranks in group order
  int rank_;
  std::string name_;
  std::function<void(const Progress&)> watch_;
  std::string call_ = "a call";
  std::atomic<bool> cancelled_ = false;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

// The block of the group with this key: the first member to come takes it from the region, the others find it.
GroupBlock find_block(const launch::SharedRegion& region, uint64_t key, int size, int64_t ring_bytes) {
  RegionHeader& header = header_of(region);
  const EnvironmentError full({.code = "LS3006",
                               .what = cat("the shared region of ", format_bytes(static_cast<double>(region.size())),
                                           " has no room for another group of ", size, " ranks"),
                               .way_out = "make each communicator once and keep it"});
  for (size_t probe = 0; probe < kMaxGroups; ++probe) {
    GroupSlot& slot = header.groups[(key + probe) % kMaxGroups];
    uint64_t holder = 0;
    if (slot.key.compare_exchange_strong(holder, key)) {
      const int64_t first = (static_cast<int64_t>(sizeof(RegionHeader)) + 4095) / 4096 * 4096;
      const int64_t bytes = GroupBlock::bytes(size, ring_bytes);
      const int64_t offset = first + header.used.fetch_add(bytes);
      slot.size.store(size);
      slot.offset.store(offset + bytes <= region.size() ? offset : -1);
    } else if (holder != key) {
      continue;
    }
    // Between the two stores of another rank lie only a few instructions, unless it died in them.
    const Deadline limit = Clock::now() + std::chrono::seconds(5);
    while (slot.offset.load() == 0) {
      if (Clock::now() > limit) throw full;
      std::this_thread::yield();
    }
    if (slot.offset.load() < 0) throw full;
    return {.base = region.data() + slot.offset.load(), .size = size, .ring_bytes = ring_bytes};
  }
  throw full;
}

}  // namespace

SharedMemoryWorld::SharedMemoryWorld(std::shared_ptr<const launch::SharedRegion> region, int rank, int size,
                                     SharedMemoryOptions options)
    : region_(std::move(region)), rank_(rank), size_(size), options_(options) {
  LOCKSTEP_CHECK(rank >= 0 && rank < size && size <= kMaxRanks, "rank ", rank, " of ", size);
  LOCKSTEP_CHECK(region_->size() > static_cast<int64_t>(sizeof(RegionHeader)), "region of ", region_->size());
  RegionHeader& header = header_of(*region_);
  int32_t before = 0;
  if (!header.world_size.compare_exchange_strong(before, size) && before != size)
    throw ConfigError({.code = "LS3005",
                       .what = cat("rank ", rank, " was told of ", size, " ranks, another rank of ", before),
                       .way_out = "start all ranks with the same world size"});
  RankRecord& record = header.ranks[static_cast<size_t>(rank)];
  record.pid.store(getpid());
  RankState unknown = RankState::kUnknown;
  if (!record.state.compare_exchange_strong(unknown, RankState::kJoined))
    throw ConfigError({.code = "LS3005",
                       .what = cat("rank ", rank, " has joined this job before"),
                       .way_out = "give every rank its own number"});
}

SharedMemoryWorld::~SharedMemoryWorld() {
  header_of(*region_).ranks[static_cast<size_t>(rank_)].state.store(RankState::kLeft);
}

std::unique_ptr<Communicator> SharedMemoryWorld::communicator(const std::vector<int>& ranks, const std::string& axis) {
  const std::string name = group_name(axis, ranks);
  const int mine = group_rank(axis, ranks, rank_, size_);
  const uint64_t key = hash64(cat(name, "#", made_[name]++)) | 1;
  const GroupBlock block = find_block(*region_, key, static_cast<int>(ranks.size()), launch::ring_bytes(size_));
  auto transport = std::make_unique<SharedMemoryTransport>(region_, block, ranks, mine, name, options_.watch);
  return std::make_unique<Communicator>(
      std::move(transport), CommunicatorOptions{.axis = axis, .ranks = ranks, .deadline = options_.deadline});
}

void SharedMemoryWorld::abort(const std::string& reason) {
  RegionHeader& header = header_of(*region_);
  AbortState none = AbortState::kNone;
  if (!header.abort.compare_exchange_strong(none, AbortState::kWriting))
    return;  // the first reason is the one that counts
  header.abort_rank.store(rank_);
  header.abort_reason.set(reason);
  header.abort.store(AbortState::kReadable);
  for (GroupSlot& slot : header.groups) {
    if (slot.offset.load() <= 0) continue;
    const GroupBlock block{.base = region_->data() + slot.offset.load(), .size = slot.size.load()};
    for (int rank = 0; rank < block.size; ++rank) ring_bell(block.member(rank));
  }
}

}  // namespace lockstep::comm
