// What lies where in the region that the ranks of one host share. Zero bytes are the valid initial state, so whoever
// comes first finds it ready. Everything is an atomic that needs no lock, or is guarded by one.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "lockstep/comm/call_label.h"

namespace lockstep::comm {

static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
inline constexpr size_t kLine = 64;  // bytes of a cache line: what two ranks write lies on different ones

// Text that one rank writes and others may read meanwhile, for messages only: a torn read is possible and harmless.
template <size_t kBytes>
class SharedText {
 public:
  void set(const std::string& text) {
    std::array<char, kBytes> bytes{};
    std::memcpy(bytes.data(), text.data(), std::min(text.size(), kBytes - 1));
    for (size_t i = 0; i < words_.size(); ++i) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + 8 * i, 8);
      words_[i].store(word, std::memory_order_relaxed);
    }
  }
  std::string get() const {
    std::array<char, kBytes> bytes{};
    for (size_t i = 0; i < words_.size(); ++i) {
      const uint64_t word = words_[i].load(std::memory_order_relaxed);
      std::memcpy(bytes.data() + 8 * i, &word, 8);
    }
    return std::string(bytes.data(), strnlen(bytes.data(), kBytes - 1));
  }

 private:
  std::array<std::atomic<uint64_t>, kBytes / 8> words_;
};

// The same of a small value that zero bytes are valid for.
template <typename T>
class SharedValue {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  void set(const T& value) {
    std::array<uint64_t, kWords> words{};
    std::memcpy(words.data(), &value, sizeof value);
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
  }
  T get() const {
    std::array<uint64_t, kWords> words{};
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    T value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof value);  // T may have member initialisers
    return value;
  }

 private:
  static constexpr size_t kWords = (sizeof(T) + 7) / 8;
  std::array<std::atomic<uint64_t>, kWords> words_;
};

enum class RankState : int32_t { kUnknown = 0, kJoined, kLeft };

struct alignas(kLine) RankRecord {
  std::atomic<RankState> state;
  std::atomic<int32_t> pid;
};

// Where the block of one group lies. Claimed by writing the key; `offset` follows when the block is there.
struct GroupSlot {
  std::atomic<uint64_t> key;
  std::atomic<int64_t> offset;
  std::atomic<int32_t> size;
};

inline constexpr int kMaxRanks = 1024;
inline constexpr int kMaxGroups = 1024;

enum class AbortState : int32_t { kNone = 0, kWriting, kReadable };

struct RegionHeader {
  std::atomic<int32_t> world_size;
  std::atomic<AbortState> abort;
  std::atomic<int32_t> abort_rank;
  std::atomic<int64_t> used;  // bytes given to groups
  SharedText<2048> abort_reason;
  std::array<GroupSlot, kMaxGroups> groups;
  std::array<RankRecord, kMaxRanks> ranks;
};

// A rank as a member of one group. Its bell is rung by peers after they moved bytes to or from it.
struct Member {
  alignas(kLine) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleeping;
  alignas(kLine) std::atomic<int64_t> sequence;
  std::atomic<int64_t> changed_at;  // nanoseconds of the steady clock, which all processes of a host share
  std::atomic<int32_t> inside;
  std::atomic<int32_t> waits_for;  // group rank + 1, negative where for room to send to it; 0: for nobody
  std::atomic<int32_t> left;       // the communicator is closed
  std::atomic<int64_t> board_sequence;  // the last collective that was made on the board
  std::atomic<int32_t> world_rank;  // + 1; written by every member
  std::atomic<int32_t> awaited;     // threads of the rank that cannot go on until a call of this group is done
  SharedValue<CallLabel> call;  // the last one; zeros: none so far
  // The board: notices put up so far, and how many members sleep until the next one is.
  alignas(kLine) std::atomic<uint32_t> notices;
  std::atomic<uint32_t> readers_asleep;
};

// Positions of one ring, in bytes since its beginning: written up to head, read up to tail.
struct Ring {
  alignas(kLine) std::atomic<uint64_t> head;
  alignas(kLine) std::atomic<uint64_t> tail;
};

// The block of a group of n: n members, n * n rings (row = sender), then their bytes. No ring leads from a member to
// itself: in its place lie the notices that the member puts up on the board, of two rounds in turn.
struct GroupBlock {
  std::byte* base = nullptr;
  int size = 0;
  int64_t ring_bytes = 0;

  static int64_t control_bytes(int size) {
    const int64_t bytes =
        size * static_cast<int64_t>(sizeof(Member)) + int64_t{size} * size * static_cast<int64_t>(sizeof(Ring));
    return (bytes + 4095) / 4096 * 4096;
  }
  static int64_t bytes(int size, int64_t ring_bytes) { return control_bytes(size) + int64_t{size} * size * ring_bytes; }

  Member& member(int rank) const { return reinterpret_cast<Member*>(base)[rank]; }
  Ring& ring(int from, int to) const {
    return reinterpret_cast<Ring*>(base + static_cast<size_t>(size) * sizeof(Member))[from * size + to];
  }
  std::byte* ring_data(int from, int to) const {
    return base + control_bytes(size) + (int64_t{from} * size + to) * ring_bytes;
  }
  int64_t notice_bytes() const { return ring_bytes / 2; }
  std::byte* notice(int member, uint32_t round) const {
    return ring_data(member, member) + (round % 2) * notice_bytes();
  }
};

}  // namespace lockstep::comm
