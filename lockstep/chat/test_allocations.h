// Counts what a test program allocates: included by a test that is a program of its own, outside of all namespaces.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

// Bytes now, and the most at one time.
inline std::atomic<int64_t> allocated_bytes{0};
inline std::atomic<int64_t> most_allocated_bytes{0};

void* operator new(size_t size) {
  void* const block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  const int64_t now = allocated_bytes += static_cast<int64_t>(malloc_usable_size(block));
  if (now > most_allocated_bytes) most_allocated_bytes = now;
  return block;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* block) noexcept {
  allocated_bytes -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }
