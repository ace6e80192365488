// A hash table from a pair of token ids to a value: open addressing, one cache line per look-up in the common case.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace lockstep::data {

template <typename Value>
class PairTable {
 public:
  explicit PairTable(size_t expected = 0) { resize(std::bit_ceil(expected * 2 + 16)); }

  const Value* find(int32_t left, int32_t right) const {
    const Slot& slot = slots_[index_of(key_of(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.value;
  }
  Value* find(int32_t left, int32_t right) {
    return const_cast<Value*>(static_cast<const PairTable*>(this)->find(left, right));
  }

  // The value of the pair, made first if it is new. References are valid until the next call.
  Value& operator()(int32_t left, int32_t right) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[index_of(key_of(left, right))];
    if (slot.key == kEmpty) {
      slot.key = key_of(left, right);
      ++used_;
    }
    return slot.value;
  }

  // visit(left, right, value) for each pair, in no stated order.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Slot& slot : slots_)
      if (slot.key != kEmpty) visit(static_cast<int32_t>(slot.key >> 32), static_cast<int32_t>(slot.key), slot.value);
  }

  size_t size() const { return used_; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // ids are not negative, so no pair has this key
  struct Slot {
    uint64_t key = kEmpty;
    Value value{};
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

  // The slot of the key, or the empty one where it belongs. Fibonacci hashing, linear probing.
  size_t index_of(uint64_t key) const {
    size_t index = static_cast<size_t>((key ^ key >> 29) * 0x9E3779B97F4A7C15u >> shift_);
    while (slots_[index].key != key && slots_[index].key != kEmpty) index = (index + 1) & (slots_.size() - 1);
    return index;
  }

  void resize(size_t size) {
    slots_ = std::vector<Slot>(size);
    shift_ = 64 - std::countr_zero(size);
  }

  void grow() {
    std::vector<Slot> old = std::move(slots_);
    resize(old.size() * 2);
    for (Slot& slot : old)
      if (slot.key != kEmpty) slots_[index_of(slot.key)] = std::move(slot);
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
  int shift_ = 0;
};

}  // namespace lockstep::data
