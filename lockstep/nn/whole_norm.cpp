#include "lockstep/nn/whole_norm.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/norm_cpu.h"
#include "lockstep/nn/row_norm.h"

namespace lockstep::nn {
namespace {

// [B, S, heads, K] -> [B, S, heads K], contiguous and not the same memory.
at::Tensor copy_of(const at::Tensor& heads) { return heads.clone(at::MemoryFormat::Contiguous).flatten(2); }

// Rows as a view of heads that lie side by side.
at::Tensor rows_of(const at::Tensor& heads) { return heads.view({heads.size(0) * heads.size(1), -1}); }

at::Tensor numbers_of(const at::Tensor& q) { return at::empty({q.size(0) * q.size(1), 2}, q.options().dtype(at::kFloat)); }

void weight_gradient(Norm::Saved& saved, const at::Tensor& gradient) {
  if (saved.dy.is_cpu())
    norm_backward_weight_cpu(saved.dy, saved.x, {.mean = {}, .rstd = saved.rstd}, {.weight = gradient, .bias = {}, .eps = 0});
  else
    cuda::norm_weight_backward(saved.dy, {.x = saved.x, .mean = {}, .rstd = saved.rstd.view({saved.x.size(0), saved.x.size(1), 1})},
                               gradient, {});
  saved = {};
}

}  // namespace

WholeNorm::WholeNorm(Parameter q_weight, Parameter k_weight, Options options, std::unique_ptr<RowSums> sums)
    : q_weight_(std::move(q_weight)), k_weight_(std::move(k_weight)), options_(options), sums_(std::move(sums)) {
  LOCKSTEP_CHECK(sums_ || (q_weight_.value.numel() == options_.q_width && k_weight_.value.numel() == options_.k_width), "weights of ",
                 q_weight_.value.numel(), " and ", k_weight_.value.numel(), " for rows of ", options_.q_width, " and ", options_.k_width);
}

at::Tensor WholeNorm::statistics(const at::Tensor& squares, int64_t column, int64_t width) const {
  return squares.select(1, column).div(static_cast<double>(width)).add_(options_.eps).rsqrt_();
}

void WholeNorm::forward(const at::Tensor& q, const at::Tensor& k, Saved* saved) {
  Saved own;
  Saved& s = saved ? *saved : own;
  s.q.x = copy_of(q), s.k.x = copy_of(k);
  if (!s.q.rstd.defined()) {
    const at::Tensor numbers = numbers_of(q);
    row_squares(s.q.x.flatten(0, 1), numbers, 0, 1);
    row_squares(s.k.x.flatten(0, 1), numbers, 1, 1 / static_cast<double>(options_.key_copies));
    if (sums_) sums_->sum_forward(numbers);
    s.q.rstd = statistics(numbers, 0, options_.q_width), s.k.rstd = statistics(numbers, 1, options_.k_width);
  }
  row_normalise({.x = s.q.x.flatten(0, 1), .rstd = s.q.rstd, .weight = q_weight_.value, .plus_one = options_.plus_one}, rows_of(q));
  row_normalise({.x = s.k.x.flatten(0, 1), .rstd = s.k.rstd, .weight = k_weight_.value, .plus_one = options_.plus_one}, rows_of(k));
}

void WholeNorm::forget(const at::Tensor& q, const at::Tensor& k, Saved& saved) {
  q.copy_(saved.q.x.view(q.sizes()));
  k.copy_(saved.k.x.view(k.sizes()));
  saved.q.x.reset(), saved.k.x.reset();
}

// With g = dy * weight and h = x * rstd: dx = rstd * (g - h * mean(g * h)). Holders of the same key heads have a part of dy each, so
// each takes its part of the mean.
void WholeNorm::backward_input(const at::Tensor& dq, const at::Tensor& dk, Saved& saved) {
  saved.q.dy = copy_of(dq), saved.k.dy = copy_of(dk);
  const NormedRows q{.x = saved.q.x.flatten(0, 1), .rstd = saved.q.rstd, .weight = q_weight_.value, .plus_one = options_.plus_one};
  const NormedRows k{.x = saved.k.x.flatten(0, 1), .rstd = saved.k.rstd, .weight = k_weight_.value, .plus_one = options_.plus_one};
  const at::Tensor numbers = numbers_of(dq);
  row_products(q, saved.q.dy.flatten(0, 1), numbers, 0);
  row_products(k, saved.k.dy.flatten(0, 1), numbers, 1);
  if (sums_) sums_->sum_backward(numbers);
  row_gradient(q, saved.q.dy.flatten(0, 1), numbers, 0, 1 / static_cast<double>(options_.q_width), rows_of(dq));
  row_gradient(k, saved.k.dy.flatten(0, 1), numbers, 1, 1 / static_cast<double>(options_.k_width * options_.key_copies), rows_of(dk));
}

void WholeNorm::backward_weight(Saved& saved) {
  weight_gradient(saved.q, q_weight_.grad);
  weight_gradient(saved.k, k_weight_.grad);
}

}  // namespace lockstep::nn
