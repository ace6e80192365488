#include "lockstep/nn/dropout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/native_dropout_backward.h>
#include <c10/util/accumulate.h>

#include <utility>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/dropout_mask.h"

namespace lockstep::nn {
namespace {

// A mask of the rows that are here: its numbers from `first` on, or of each row from its own.
struct RowsDraw {
  MaskDraw draw;
  std::vector<int64_t> rows{};  // of sequences in parts or in documents
};

// Rows of the step's global batch, counted through all its sequences.
std::vector<int64_t> rows_of_places(const Microbatch& microbatch, const mesh::Range& here) {
  const TokenPlaces& places = *microbatch.places;
  LOCKSTEP_CHECK(places.index.is_contiguous() && places.index.sizes() == microbatch.tokens.sizes(), "places of other tokens");
  const int64_t tokens = places.index.size(1);
  const int32_t* const index = places.index.const_data_ptr<int32_t>();
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(here.size()));
  for (int64_t i = here.begin; i < here.end; ++i) rows.push_back((microbatch.first_sample + i / tokens) * places.length + index[i]);
  return rows;
}

// Of the rows that are here, `shape` together.
RowsDraw draw_of(const DropoutOptions& options, const Microbatch& microbatch, at::IntArrayRef shape) {
  const int64_t all = microbatch.tokens.numel(), width = shape.back();
  const mesh::Range here = options.rows_here ? options.rows_here(all) : mesh::Range{0, all};
  LOCKSTEP_CHECK_EQ(c10::multiply_integers(shape), here.size() * width, "the rows of ", options.site);
  RowsDraw of{.draw = {.numbers = philox_stream(options.seed, cat("dropout/step ", microbatch.step, "/", options.site)),
                       .first = 0,
                       .probability = options.probability}};
  if (microbatch.places) of.rows = rows_of_places(microbatch, here);
  else of.draw.first = static_cast<uint64_t>((microbatch.first_sample * microbatch.tokens.size(1) + here.begin) * width);
  return of;
}

at::Tensor on_cpu(const RowsDraw& of, at::IntArrayRef shape) {
  return of.rows.empty() ? dropout_mask_cpu(of.draw, shape) : dropout_mask_cpu(of.draw, of.rows, shape);
}

// Rows that follow one another are drawn as one.
at::Tensor on_device(const RowsDraw& of, at::IntArrayRef shape, at::Device device) {
  if (of.rows.empty()) return cuda::dropout_mask(of.draw, shape, device);
  const auto count = static_cast<int64_t>(of.rows.size());
  const at::Tensor mask = at::empty(shape, at::TensorOptions(device).dtype(at::kBool)), rows = mask.view({count, shape.back()});
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    const int64_t first = of.rows[static_cast<size_t>(begin)];
    while (end < count && of.rows[static_cast<size_t>(end)] == first + end - begin) ++end;
    MaskDraw part = of.draw;
    part.first = static_cast<uint64_t>(first * shape.back());
    rows.narrow(0, begin, end - begin).copy_(cuda::dropout_mask(part, {end - begin, shape.back()}, device));
  }
  return mask;
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
  const RowsDraw draw = draw_of(options_, microbatch, like.sizes());
  saved.mask = like.is_cpu() ? on_cpu(draw, like.sizes()) : on_device(draw, like.sizes(), like.device());
}

at::Tensor Dropout::backward(const at::Tensor& dy, Saved& saved) const {
  if (options_.probability == 0) return dy;
  const at::Tensor mask = std::exchange(saved.mask, {});
  return at::native_dropout_backward(dy, mask, scale());
}

at::Tensor Dropout::mask(const Microbatch& microbatch, at::IntArrayRef shape) const {
  return on_cpu(draw_of(options_, microbatch, shape), shape);
}

}  // namespace lockstep::nn
