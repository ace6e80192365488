#include "lockstep/nn/head.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "lockstep/nn/accumulate.h"
#include "lockstep/nn/linear.h"

namespace lockstep::nn {
namespace {

constexpr int64_t kIgnored = -100;

struct HeadSaved : Saved {
  Norm::Saved norm;
  at::Tensor dh;  // [B, S, D]: gradient of the norm's output
};

// rows [m, D] -> log softmax of the logits [m, V], fp32.
at::Tensor log_probabilities(const at::Tensor& rows, const at::Tensor& weight) {
  const at::Tensor logits = at::mm(rows, weight.t()).to(at::kFloat);
  return at::_log_softmax(logits, 1, /*half_to_float=*/false);
}

at::Tensor loss_sum(const at::Tensor& log_p, const at::Tensor& targets) {
  return at::nll_loss(log_p, targets, {}, at::Reduction::Sum, kIgnored);
}

}  // namespace

Head::Head(std::unique_ptr<Norm> norm, Parameter weight, int64_t chunk_rows)
    : norm_(std::move(norm)), weight_(std::move(weight)), chunk_rows_(chunk_rows) {}

at::Tensor Head::forward(const at::Tensor& x, const Microbatch& microbatch, std::unique_ptr<Saved>* saved) {
  auto kept = std::make_unique<HeadSaved>();
  const at::Tensor h = norm_->forward(x, saved ? &kept->norm : nullptr);
  const at::Tensor rows = flatten_rows(h);
  const at::Tensor targets = microbatch.targets.reshape({-1});
  // A zero row adds nothing to W's gradient; its own gradient is zeroed below.
  const at::Tensor valid = targets.ne(kIgnored).unsqueeze(1);
  if (saved) rows.mul_(valid);

  at::Tensor loss = at::zeros({}, rows.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < rows.size(0); begin += chunk_rows_) {
    const int64_t size = std::min(chunk_rows_, rows.size(0) - begin);
    const at::Tensor chunk = rows.narrow(0, begin, size);
    const at::Tensor chunk_targets = targets.narrow(0, begin, size);
    loss.add_(saved ? train_chunk(chunk, chunk_targets)
                    : loss_sum(log_probabilities(chunk, weight_.value), chunk_targets));
  }
  if (saved) {
    kept->dh = h.mul_(valid.view({x.size(0), x.size(1), 1}));
    *saved = std::move(kept);
  }
  return loss;
}

// Returns the chunk's loss, adds to W's gradient and overwrites `rows` with their gradient.
at::Tensor Head::train_chunk(const at::Tensor& rows, const at::Tensor& targets) {
  at::Tensor p = log_probabilities(rows, weight_.value);  // [m, V]
  const at::Tensor loss = loss_sum(p, targets);
  p.exp_().scatter_(1, targets.clamp_min(0).unsqueeze(1), -1, "add");  // softmax - onehot
  p = p.to(rows.scalar_type());
  accumulate_matmul(weight_.grad, p.t(), rows);
  at::Tensor out = rows;
  at::mm_out(out, p, weight_.value);
  return loss;
}

at::Tensor Head::backward_input(const at::Tensor&, Saved& saved) {
  auto& kept = static_cast<HeadSaved&>(saved);
  return norm_->backward_input(std::exchange(kept.dh, {}), kept.norm);
}

void Head::backward_weight(Saved& saved) {
  norm_->backward_weight(static_cast<HeadSaved&>(saved).norm);
}

at::Tensor Head::logits(const at::Tensor& x) {
  const at::Tensor h = norm_->forward(x, nullptr);
  std::vector<int64_t> shape = h.sizes().vec();
  shape.back() = weight_.value.size(0);
  return at::mm(flatten_rows(h), weight_.value.t()).to(at::kFloat).view(shape);
}

}  // namespace lockstep::nn
