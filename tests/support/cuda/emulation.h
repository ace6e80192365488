// A grid of CUDA threads on one thread of the CPU: blocks run one after the other; the threads of a block are fibers, each of
// which runs until it comes to a barrier or a shuffle. What is wrong on a GPU is told by name:
// - threads of a block that wait at different barriers, or at one that another thread never comes to
// - a shuffle whose mask names a lane that does not take part, or that reads a lane that the mask does not name
// - memory beyond a buffer (guarded.h) or a shared array, or written where it may only be read
// - several elements at once at an address that is not a multiple of their size (where the kernel is compiled as
//   cmake/emulated_kernels.cmake does it)
// - grids that CUDA refuses
// and what depends on who is first shows as other bits in another order (set_order); reading a shared array before it is
// written gives NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>

#include "cuda_runtime_api.h"

namespace lockstep::emulation {

// Of the threads of a block between two waits, and of the blocks of a grid.
struct Order {
  enum Kind { kAscending, kDescending, kShuffled } kind = kAscending;
  uint64_t seed = 0;
  bool warps_ahead = false;  // a warp runs up to its barrier, through all shuffles, before the next runs at all
};
// For the launches that this thread of the host makes from here on.
void set_order(const Order& order);

// Called with its stream before each launch, of whatever thread; null: nothing. For who keeps streams.
using BeforeLaunch = void (*)(cudaStream_t stream);
void set_before_launch(BeforeLaunch before);

// Runs `thread` once for each thread of the grid. Other than cudaSuccess: cudaGetErrorString says what was found; the grid
// has ended there.
cudaError_t launch(const cudaLaunchConfig_t& grid, const std::function<void()>& thread);

// What follows is called by the threads of a grid.
void barrier(const std::source_location& where);

struct ShuffleDown {
  unsigned mask;
  unsigned delta;
  int width;
  std::source_location where;
};
// `value` becomes that of the lane `delta` further on in its part of `width` lanes; behind the end it stays.
void shuffle_down(const ShuffleDown& call, void* value, size_t size);

// An array in the memory of a block; an object with static storage duration.
class Shared {
 public:
  constexpr Shared(const char* name, size_t size) : name_(name), size_(size) {}
  void* of_block() const;
  const char* name() const { return name_; }
  size_t size() const { return size_; }

 private:
  const char* name_;
  size_t size_;
};

}  // namespace lockstep::emulation
