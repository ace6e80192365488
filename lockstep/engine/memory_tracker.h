// Measured memory: every CPU tensor is allocated under a category of a rank's account, so that what a run uses stands
// beside what program/predict/memory.h predicted; the blocks it lies in; and what a rank says that runs out of it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

using program::MemoryCategory;

// A tensor would have taken the device beyond its limit; it was not allocated. Executor tells where (OutOfMemory).
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

// Blocks of host memory that are kept after use. Fresh pages are filled by the kernel at a fraction of the speed of used
// ones, and a training step asks for the same sizes every time: after the first step it takes nothing new.
// Thread-safe. Blocks are handed out by size class (at most a quarter larger than asked for) and never given back to the
// system: what is cached is bounded by the largest demand of each class.
class BlockCache {
 public:
  // At least `bytes` bytes, aligned to 64; from 2 MiB on to huge pages. Null where the host has no more.
  void* take(size_t bytes);
  // A block of take(bytes), with the same `bytes`.
  void give_back(void* block, size_t bytes);

  // Blocks that had to be asked from the system so far: stands still while steps are alike.
  int64_t fresh_blocks() const { return fresh_; }

  // Four classes between one power of two and the next; multiples of 64.
  static size_t size_class(size_t bytes);

 private:
  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
  std::atomic<int64_t> fresh_{0};
};

// Replaces LibTorch's CPU allocator by one that keeps accounts, and blocks for reuse; once per process, later calls do
// nothing. Allocations outside any MemoryScope are not accounted.
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

// LS4001: beyond memory.device_limit. LS4002: the host or the device itself has no more. Its message is one line; the
// table of memory and the ways out are added where the run configuration is known (train/out_of_memory.h).
class OutOfMemory : public OutOfMemoryError {
 public:
  OutOfMemory(Message message, const program::MemoryBytes& largest) : OutOfMemoryError(std::move(message)), measured(largest) {}
  const program::MemoryBytes measured;  // the largest of each category so far
};

// To be called in a handler: goes on with the exception that is handled there, as OutOfMemory where it tells that memory
// was short (DeviceLimitReached, std::bad_alloc, c10::OutOfMemoryError) for `doing`.
[[noreturn]] void rethrow_out_of_memory(const program::Layout& layout, int rank, const std::string& doing,
                                        const program::MemoryBytes& measured);
// "forward of blocks.3, microbatch 1".
std::string doing_text(const program::Action& action, const program::Layout& layout);

}  // namespace lockstep::engine
