#include "lockstep/engine/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

namespace lockstep::engine {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

void* fresh_block(size_t bytes) {
  void* block = nullptr;
  const size_t alignment = bytes >= kHugePage ? kHugePage : kLine;
  if (::posix_memalign(&block, alignment, bytes) != 0) throw std::bad_alloc();
  // Advice only: a kernel without huge pages ignores it.
  if (alignment == kHugePage) ::madvise(block, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return block;
}

}  // namespace

size_t BlockCache::size_class(size_t bytes) {
  const size_t lines = std::max<size_t>(1, (bytes + kLine - 1) / kLine);
  const size_t step = std::max<size_t>(1, std::bit_floor(lines) / 4);
  return (lines + step - 1) / step * step * kLine;
}

void* BlockCache::take(size_t bytes) {
  const size_t size = size_class(bytes);
  {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& blocks = free_[size];
    if (!blocks.empty()) {
      void* block = blocks.back();  // the last one used: its lines may still be in the cache
      blocks.pop_back();
      return block;
    }
  }
  void* block = fresh_block(size);
  fresh_.fetch_add(1);
  return block;
}

void BlockCache::give_back(void* block, size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_[size_class(bytes)].push_back(block);
}

}  // namespace lockstep::engine
