#include "lockstep/comm/shared_memory.h"

#include <unistd.h>

#include <exception>
#include <thread>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/shared_board.h"
#include "lockstep/comm/shared_group.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSpins = 64;             // before sleeping; more only takes a core from those who compute
constexpr size_t kPiece = 128 * 1024;  // moved at once, so that writer and reader work at the same time

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
  SharedMemoryTransport(std::shared_ptr<const launch::SharedRegion> region, SharedGroup::Options options)
      : group_(std::move(region), std::move(options)), board_(group_) {}
  ~SharedMemoryTransport() override {
    // While an exception unwinds, its reason is still to be told by World::abort: "closed the group" must not come
    // first.
    if (std::uncaught_exceptions() <= exceptions_at_start_) group_.close();
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string backend() const override { return "shared_memory"; }
  Board* board() override { return &board_; }
  void publish(const Progress& progress) override { group_.publish(progress); }
  void add_awaiting(int change) override { group_.add_awaiting(change); }
  void cancel() override { group_.cancel(); }

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

 private:
  template <typename Consume>
  void exchange(int to, std::span<const std::byte> out, int from, size_t in_size, const Consume& consume,
                Deadline deadline) {
    Outgoing outgoing;
    Incoming incoming;
    const GroupBlock& block = group_.block();
    if (to >= 0) outgoing = Outgoing(block, rank(), to, out);
    if (from >= 0) incoming = Incoming(block, from, rank(), in_size);
    const Deadline began = Clock::now();
    SharedGroup::Wait wait{.began = began, .deadline = deadline};
    int spins = 0;
    while (!outgoing.done() || !incoming.done()) {
      const uint32_t seen = group_.me().bell.load();
      const bool sent = outgoing.advance();
      const bool received = incoming.advance(consume);
      if (sent) ring_bell(group_.member(to));
      if (received) ring_bell(group_.member(from));
      if (sent || received) {
        if (spins > kSpins) group_.wait_no_more();
        spins = 0;
        wait.gone = false;
      } else if (++spins <= kSpins) {
        relax();
      } else {
        pause(wait, incoming.done() ? to : from, !incoming.done(), seen);
      }
    }
  }

  void pause(SharedGroup::Wait& wait, int peer, bool its_bytes, uint32_t seen) {
    Member& me = group_.me();
    group_.wait_for(peer, its_bytes);
    group_.look_around(wait, peer);
    if (wait.gone) return;
    me.sleeping.store(1);
    if (me.bell.load() == seen) sleep_on(me.bell, seen, SharedGroup::slice(wait));
    me.sleeping.store(0);
  }

  SharedGroup group_;
  SharedBoard board_;
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
  auto transport = std::make_unique<SharedMemoryTransport>(
      region_,
      SharedGroup::Options{.block = block, .ranks = ranks, .rank = mine, .name = name, .watch = options_.watch});
  return std::make_unique<Communicator>(
      std::move(transport),
      CommunicatorOptions{.axis = axis, .ranks = ranks, .deadline = options_.deadline, .stager = options_.stager});
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
    for (int rank = 0; rank < block.size; ++rank) {
      ring_bell(block.member(rank));
      wake_all(block.member(rank).notices);
    }
  }
}

}  // namespace lockstep::comm
