// Measured memory: every CPU tensor is allocated under a category of a rank's account, so that what a run uses stands
// beside what program/predict/memory.h predicted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>

#include "lockstep/program/predict/memory.h"

namespace lockstep::engine {

using program::MemoryCategory;

// A tensor would have taken the device beyond its limit; it was not allocated. Executor tells where (out_of_memory.h).
class DeviceLimitReached : public std::runtime_error {
 public:
  DeviceLimitReached(int64_t asked, int64_t free, int64_t limit);
  const int64_t asked, free, limit;  // bytes
};

// Live and peak bytes of one rank. Tensors may be freed on any thread.
class MemoryAccount {
 public:
  // `device_limit`: bytes of all categories but the host's together; 0 = none.
  explicit MemoryAccount(int64_t device_limit = 0) : limit_(device_limit) {}
  void add(MemoryCategory category, int64_t bytes);  // DeviceLimitReached, and nothing added
  void remove(MemoryCategory category, int64_t bytes);
  int64_t live(MemoryCategory category) const { return counters_[static_cast<size_t>(category)].live; }
  int64_t peak(MemoryCategory category) const { return counters_[static_cast<size_t>(category)].peak; }
  // From here on peak() counts anew.
  void restart_peak(MemoryCategory category) { counters_[static_cast<size_t>(category)].peak = live(category); }
  // Of the device, all categories together at the same time.
  int64_t live_total() const { return device_.live; }
  int64_t peak_total() const { return device_.peak; }

 private:
  struct Counter {
    std::atomic<int64_t> live{0};
    std::atomic<int64_t> peak{0};
    void add(int64_t bytes);
  };
  std::array<Counter, program::kNumMemoryCategories> counters_;
  Counter device_;
  const int64_t limit_;
};

// Replaces LibTorch's CPU allocator by one that keeps accounts and keeps blocks for reuse (block_cache.h); once per
// process, later calls do nothing. Allocations outside any MemoryScope are not accounted.
void install_memory_tracking();

// Blocks that the CPU allocator has asked from the system so far; a steady step adds none.
int64_t fresh_blocks();

// While it lives, CPU tensors allocated on this thread belong to the category of the account. Scopes nest.
class MemoryScope {
 public:
  MemoryScope(std::shared_ptr<MemoryAccount> account, MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  std::shared_ptr<MemoryAccount> account_;
  MemoryCategory category_;
  const MemoryScope* outer_;
  friend class TrackingAllocator;
};

// What the actions of a step take, measured as program/predict/memory.h states it.
class StepMemory {
 public:
  explicit StepMemory(std::shared_ptr<MemoryAccount> account) : account_(std::move(account)) {}

  // Activations and workspace share one counter while a step runs; the notes tell them apart at the borders of actions.
  MemoryScope scope() const { return {account_, kCategory}; }
  const std::shared_ptr<MemoryAccount>& account() const { return account_; }
  int64_t live() const { return account_->live(kCategory); }
  void restart_peak() { account_->restart_peak(kCategory); }
  // What an action took beyond `baseline`, what lived before it and what it leaves behind; beside what is on its way.
  void note_workspace(int64_t baseline);
  void note_activations();
  // Largest bytes per category since the start.
  program::MemoryBytes measured() const;

 private:
  static constexpr MemoryCategory kCategory = MemoryCategory::kActivations;
  std::shared_ptr<MemoryAccount> account_;
  program::MemoryBytes measured_{};
};

}  // namespace lockstep::engine
