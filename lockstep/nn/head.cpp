#include "lockstep/nn/head.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "lockstep/nn/accumulate.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/nn/gemm.h"
#include "lockstep/nn/linear.h"

namespace lockstep::nn {

Head::Head(std::unique_ptr<Norm> norm, Parameter weight, int64_t chunk_rows, double factor)
    : norm_(std::move(norm)), weight_(std::move(weight)), chunk_rows_(chunk_rows), factor_(factor) {}

at::Tensor Head::normed(const at::Tensor& x, Norm::Saved* saved) {
  at::Tensor h = norm_->forward(x, saved);
  return factor_ == 1 ? h : h.mul_(factor_);
}

at::Tensor Head::forward(const at::Tensor& x, const Microbatch& microbatch, std::unique_ptr<Saved>* saved) {
  const at::Tensor targets = microbatch.targets.reshape({-1});
  if (!saved) return loss(all_rows(normed(x, nullptr), targets.size(0)), targets, Gradients::kNone);
  auto kept = std::make_unique<Kept>();
  kept->x = x;
  kept->targets = targets;
  *saved = std::move(kept);
  return {};
}

at::Tensor Head::backward_input(const at::Tensor&, Saved& saved) {
  auto& kept = static_cast<Kept&>(saved);
  const at::Tensor x = std::exchange(kept.x, {}), targets = std::exchange(kept.targets, {});
  at::Tensor rows = all_rows(normed(x, &kept.norm), targets.size(0));
  kept.loss = loss(rows, targets, Gradients::kAdd);
  const at::Tensor dh = own_rows(std::exchange(rows, {})).view(x.sizes());
  if (factor_ != 1) dh.mul_(factor_);
  return norm_->backward_input(dh, kept.norm);
}

void Head::backward_weight(Saved& saved) {
  norm_->backward_weight(static_cast<Kept&>(saved).norm);
}

at::Tensor Head::loss(const at::Tensor& rows, const at::Tensor& targets, Gradients gradients) {
  at::Tensor sum = at::zeros({}, rows.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < rows.size(0); begin += chunk_rows_) {
    const int64_t size = std::min(chunk_rows_, rows.size(0) - begin);
    const at::Tensor chunk = rows.narrow(0, begin, size);
    const at::Tensor logits = multiply(chunk, weight_.value.t());  // [m, V]
    sum.add_(chunk_loss(logits, targets.narrow(0, begin, size)));
    if (gradients == Gradients::kNone) continue;
    accumulate_matmul(weight_.grad, logits.t(), chunk);
    chunk.copy_(multiply(logits, weight_.value));
  }
  return sum;
}

at::Tensor Head::all_rows(const at::Tensor& h, int64_t) { return flatten_rows(h); }
at::Tensor Head::own_rows(const at::Tensor& dh) { return dh; }
at::Tensor Head::chunk_loss(const at::Tensor& logits, const at::Tensor& targets) { return cross_entropy_(logits, targets); }

at::Tensor Head::logits(const at::Tensor& x) {
  const at::Tensor h = normed(x, nullptr);
  std::vector<int64_t> shape = h.sizes().vec();
  shape.back() = weight_.value.size(0);
  return multiply(flatten_rows(h), weight_.value.t()).to(at::kFloat).view(shape);
}

}  // namespace lockstep::nn
