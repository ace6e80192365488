// Blocks of host memory that are kept after use. Fresh pages are filled by the kernel at a fraction of the speed of used
// ones, and a training step asks for the same sizes every time: after the first step it takes nothing new.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace lockstep::engine {

// Thread-safe. Blocks are handed out by size class (at most a quarter larger than asked for) and never given back to the
// system: what is cached is bounded by the largest demand of each class.
class BlockCache {
 public:
  // At least `bytes` bytes, aligned to 64; from 2 MiB on to huge pages. std::bad_alloc where the host has no more.
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

}  // namespace lockstep::engine
