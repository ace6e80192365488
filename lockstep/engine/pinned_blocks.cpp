#include "lockstep/engine/pinned_blocks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>

namespace lockstep::engine {
namespace {

constexpr int64_t kAlign = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

void let_go(void* piece) { delete static_cast<at::Tensor*>(piece); }

// The largest power of two that what is left fills, or the smallest that its largest block fits into.
int64_t piece_for(int64_t left, int64_t largest) {
  return static_cast<int64_t>(
      std::max(std::bit_floor(static_cast<uint64_t>(left)), std::bit_ceil(static_cast<uint64_t>(largest))));
}

}  // namespace

PinnedPlan plan_pinned(const std::vector<int64_t>& blocks) {
  PinnedPlan plan;
  plan.places.resize(blocks.size());
  std::vector<size_t> left(blocks.size());  // largest first
  std::iota(left.begin(), left.end(), size_t{0});
  std::stable_sort(left.begin(), left.end(), [&](size_t a, size_t b) { return blocks[a] > blocks[b]; });
  int64_t bytes = 0;
  for (const int64_t block : blocks) bytes += aligned(block);
  while (!left.empty()) {
    const int64_t piece = piece_for(bytes, aligned(blocks[left.front()]));
    int64_t used = 0;
    std::vector<size_t> others;
    for (const size_t block : left) {
      const int64_t size = aligned(blocks[block]);
      if (used + size > piece) {
        others.push_back(block);
        continue;
      }
      plan.places[block] = {.piece = plan.pieces.size(), .offset = used};
      used += size;
    }
    plan.pieces.push_back(piece);
    left = std::move(others);
    bytes -= used;
  }
  return plan;
}

std::vector<c10::DataPtr> pinned_blocks(const std::vector<int64_t>& blocks) {
  const PinnedPlan plan = plan_pinned(blocks);
  std::vector<at::Tensor> pieces;
  for (const int64_t bytes : plan.pieces)
    pieces.push_back(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true)));
  std::vector<c10::DataPtr> memory;
  for (const PinnedPlan::Place& place : plan.places) {
    const at::Tensor& piece = pieces[place.piece];
    void* block = static_cast<std::byte*>(piece.mutable_data_ptr()) + place.offset;
    memory.emplace_back(block, new at::Tensor(piece), &let_go, at::kCPU);
  }
  return memory;
}

}  // namespace lockstep::engine
