// Pinned host memory for blocks that stay. LibTorch's allocator rounds each size it is asked for up to a power of two, which may
// double what is taken: here blocks lie side by side in few pieces whose sizes are powers of two.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <vector>

namespace lockstep::engine {

struct PinnedPlan {
  struct Place {
    size_t piece = 0;
    int64_t offset = 0;  // a multiple of 256
  };
  std::vector<int64_t> pieces;  // bytes, powers of two
  std::vector<Place> places;    // of the blocks, in their order
};
// `blocks`: bytes of each, above 0.
PinnedPlan plan_pinned(const std::vector<int64_t>& blocks);

// Memory of these blocks. A piece is given back with the last block in it.
std::vector<c10::DataPtr> pinned_blocks(const std::vector<int64_t>& blocks);

}  // namespace lockstep::engine
