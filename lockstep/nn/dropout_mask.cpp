#include "lockstep/nn/dropout_mask.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::nn {

namespace {

// out[i] is of number first + i, for i in [begin, end).
void draw_numbers(const MaskDraw& draw, uint64_t first, bool* out, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end;) {
    const uint64_t index = first + static_cast<uint64_t>(i);
    const PhiloxLanes drawn = draw.numbers.block(index / 4);
    for (uint64_t lane = index % 4; lane < 4 && i < end; ++lane) out[i++] = unit_of(drawn.at[lane]) >= draw.probability;
  }
}

constexpr int64_t kGrain = 16384;  // elements

}  // namespace

at::Tensor dropout_mask_cpu(const MaskDraw& draw, at::IntArrayRef shape) {
  at::Tensor mask = at::empty(shape, at::kBool);
  bool* const out = mask.mutable_data_ptr<bool>();
  at::parallel_for(0, mask.numel(), kGrain, [&](int64_t begin, int64_t end) { draw_numbers(draw, draw.first, out, begin, end); });
  return mask;
}

at::Tensor dropout_mask_cpu(const MaskDraw& draw, std::span<const int64_t> rows, at::IntArrayRef shape) {
  at::Tensor mask = at::empty(shape, at::kBool);
  const int64_t width = shape.back();
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(rows.size()) * width, mask.numel());
  bool* const out = mask.mutable_data_ptr<bool>();
  at::parallel_for(0, static_cast<int64_t>(rows.size()), std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      draw_numbers(draw, draw.first + static_cast<uint64_t>(rows[static_cast<size_t>(i)] * width), out + i * width, 0, width);
  });
  return mask;
}

}  // namespace lockstep::nn
