#include "lockstep/nn/dropout.h"

#include <ATen/ops/native_dropout_backward.h>
#include <c10/util/accumulate.h>

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/dropout_mask.h"

namespace lockstep::nn {
namespace {

// Of the rows that are here, `shape` together.
MaskDraw draw_of(const DropoutOptions& options, const Microbatch& microbatch, at::IntArrayRef shape) {
  const int64_t rows = microbatch.tokens.numel(), width = shape.back();
  const mesh::Range here = options.rows_here ? options.rows_here(rows) : mesh::Range{0, rows};
  LOCKSTEP_CHECK_EQ(c10::multiply_integers(shape), here.size() * width, "the rows of ", options.site);
  const int64_t first = (microbatch.first_sample * microbatch.tokens.size(1) + here.begin) * width;
  return {.numbers = philox_stream(options.seed, cat("dropout/step ", microbatch.step, "/", options.site)),
          .first = static_cast<uint64_t>(first),
          .probability = options.probability};
}

}  // namespace

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
  if (options_.probability == 0) return;
  const MaskDraw draw = draw_of(options_, microbatch, like.sizes());
  saved.mask = like.is_cpu() ? dropout_mask_cpu(draw, like.sizes()) : cuda::dropout_mask(draw, like.sizes(), like.device());
}

at::Tensor Dropout::backward(const at::Tensor& dy, Saved& saved) const {
  if (options_.probability == 0) return dy;
  const at::Tensor mask = std::exchange(saved.mask, {});
  return at::native_dropout_backward(dy, mask, scale());
}

at::Tensor Dropout::mask(const Microbatch& microbatch, at::IntArrayRef shape) const {
  return dropout_mask_cpu(draw_of(options_, microbatch, shape), shape);
}

}  // namespace lockstep::nn
