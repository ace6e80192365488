#include "lockstep/nn/dropout.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_dropout_backward.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/mesh/placement.h"

namespace lockstep::nn {

Dropout::Dropout(DropoutOptions options) : options_(std::move(options)) {}

at::Tensor Dropout::forward(at::Tensor x, const Microbatch& microbatch, Saved* saved) const {
  if (options_.probability == 0) return x;
  Saved kept;
  redraw(x, microbatch, kept);
  x.mul_(kept.mask).mul_(scale());
  if (saved) *saved = std::move(kept);
  return x;
}

void Dropout::redraw(const at::Tensor& like, const Microbatch& microbatch, Saved& saved) const {
  if (options_.probability > 0) saved.mask = mask(microbatch, like.sizes()).to(like.device());
}

at::Tensor Dropout::backward(const at::Tensor& dy, Saved& saved) const {
  if (options_.probability == 0) return dy;
  const at::Tensor mask = std::exchange(saved.mask, {});
  return at::native_dropout_backward(dy, mask, scale());
}

at::Tensor Dropout::mask(const Microbatch& microbatch, at::IntArrayRef shape) const {
  at::Tensor mask = at::empty(shape, at::kBool);
  const RandomStream stream(options_.seed, cat("dropout/step ", microbatch.step, "/", options_.site));
  const int64_t rows = microbatch.tokens.numel(), width = shape.back();
  const mesh::Range part = mesh::padded_range(rows, options_.row_parts, options_.row_part);
  LOCKSTEP_CHECK_EQ(mask.numel(), part.size() * width, "the rows of ", options_.site);
  const int64_t first = (microbatch.first_sample * microbatch.tokens.size(1) + part.begin) * width;
  bool* out = mask.data_ptr<bool>();
  at::parallel_for(0, mask.numel(), /*grain_size=*/16384, [&](int64_t begin, int64_t end) {
    std::array<float, 1024> numbers;
    for (int64_t i = begin; i < end; i += 1024) {
      const std::span<float> part(numbers.data(), static_cast<size_t>(std::min<int64_t>(1024, end - i)));
      stream.uniform(static_cast<uint64_t>(first + i), part);
      std::transform(part.begin(), part.end(), out + i, [this](float u) { return u >= options_.probability; });
    }
  });
  return mask;
}

}  // namespace lockstep::nn
