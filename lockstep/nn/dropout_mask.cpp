#include "lockstep/nn/dropout_mask.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

namespace lockstep::nn {

at::Tensor dropout_mask_cpu(const MaskDraw& draw, at::IntArrayRef shape) {
  at::Tensor mask = at::empty(shape, at::kBool);
  bool* const out = mask.mutable_data_ptr<bool>();
  at::parallel_for(0, mask.numel(), /*grain_size=*/16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const uint64_t index = draw.first + static_cast<uint64_t>(i);
      const PhiloxLanes drawn = draw.numbers.block(index / 4);
      for (uint64_t lane = index % 4; lane < 4 && i < end; ++lane) out[i++] = unit_of(drawn.at[lane]) >= draw.probability;
    }
  });
  return mask;
}

}  // namespace lockstep::nn
