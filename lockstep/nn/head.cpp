#include "lockstep/nn/head.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "lockstep/nn/accumulate.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/nn/gemm.h"
#include "lockstep/nn/linear.h"

namespace lockstep::nn {

Head::Head(std::unique_ptr<Norm> norm, Parameter weight, int64_t chunk_rows)
    : norm_(std::move(norm)), weight_(std::move(weight)), chunk_rows_(chunk_rows) {}

at::Tensor Head::forward(const at::Tensor& x, const Microbatch& microbatch, std::unique_ptr<Saved>* saved) {
  auto kept = std::make_unique<Kept>();
  const at::Tensor h = norm_->forward(x, saved ? &kept->norm : nullptr);
  const at::Tensor rows = flatten_rows(h);
  const at::Tensor targets = microbatch.targets.reshape({-1});
  at::Tensor loss = at::zeros({}, rows.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < rows.size(0); begin += chunk_rows_) {
    const int64_t size = std::min(chunk_rows_, rows.size(0) - begin);
    const at::Tensor chunk = rows.narrow(0, begin, size);
    const at::Tensor logits = multiply(chunk, weight_.value.t());  // [m, V]
    loss.add_(cross_entropy_(logits, targets.narrow(0, begin, size)));
    if (saved) chunk_backward(chunk, logits);
  }
  if (saved) {
    kept->dh = h;
    *saved = std::move(kept);
  }
  return loss;
}

void Head::chunk_backward(at::Tensor rows, const at::Tensor& dlogits) {
  accumulate_matmul(weight_.grad, dlogits.t(), rows);
  rows.copy_(multiply(dlogits, weight_.value));
}

at::Tensor Head::backward_input(const at::Tensor&, Saved& saved) {
  auto& kept = static_cast<Kept&>(saved);
  return norm_->backward_input(std::exchange(kept.dh, {}), kept.norm);
}

void Head::backward_weight(Saved& saved) {
  norm_->backward_weight(static_cast<Kept&>(saved).norm);
}

at::Tensor Head::logits(const at::Tensor& x) {
  const at::Tensor h = norm_->forward(x, nullptr);
  std::vector<int64_t> shape = h.sizes().vec();
  shape.back() = weight_.value.size(0);
  return multiply(flatten_rows(h), weight_.value.t()).to(at::kFloat).view(shape);
}

}  // namespace lockstep::nn
