// LOSS and NORM: the two places of a step at which the host waits for the device, once each.
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/engine/executor.h"
#include "lockstep/optim/adamw.h"

namespace lockstep::engine {

using program::Algorithm;

int64_t Executor::tokens_here() const {
  int64_t tokens = 0;
  for (const nn::Microbatch& microbatch : *microbatches_) tokens += valid_targets(microbatch);
  return tokens;
}

int64_t Executor::valid_targets(const nn::Microbatch& microbatch) {
  LOCKSTEP_CHECK(microbatch.valid_targets >= 0, "a microbatch whose valid targets nobody has counted");
  return microbatch.valid_targets;
}

// The sum of this rank's losses. They come over together with the flags of gradients, in one copy; fp64 holds both exactly.
double Executor::read_device() {
  const size_t losses = counts_loss() ? losses_.size() : 0;
  std::vector<at::Tensor> told;
  if (losses > 0) told.push_back(at::stack(losses_).to(at::kDouble));
  if (const at::Tensor flags = gradients_.watch().unread(); flags.defined()) told.push_back(flags.to(at::kDouble));
  if (told.empty()) return 0;
  const at::Tensor here = at::cat(told).cpu();
  gradients_.device_waited_for();
  const double* values = here.const_data_ptr<double>();
  gradients_.watch().read({values + losses, static_cast<size_t>(here.numel()) - losses});
  double loss = 0;
  for (size_t i = 0; i < losses; ++i) loss += values[i];
  return loss;
}

Executor::LossSums Executor::start_loss(bool blocking) {
  const double loss = read_device();
  const auto tokens = static_cast<double>(counts_loss() ? tokens_here() : 0);
  LossSums all{.sums = at::tensor({loss, tokens, gradients_.watch().first() >= 0 ? 1.0 : 0.0}, at::kDouble)};
  all.work = groups_.replica().all_reduce(all.sums, {.site = "loss", .algorithm = Algorithm::kDirect, .blocking = blocking});
  return all;
}

void Executor::reduce_loss() {
  if (pends_) {
    pending_ = Pending{.step = step_, .lr = lr_, .loss = start_loss(false)};
    return;
  }
  LossSums all = start_loss(true);
  waits_.wait(all.work, "loss");
  const double* values = all.sums.const_data_ptr<double>();
  if (values[2] > 0) return nonfinite(step_);
  result_.tokens = std::llround(values[1]);
  LOCKSTEP_CHECK(result_.tokens > 0, "a step without a single valid target");
  result_.loss = values[0] / values[1];
}

// The one division by the global token count, and the clipping.
void Executor::norm() {
  gradients_.wait();
  const double tokens = before_ ? wait_for_tokens() : 0;
  if (pends_) {
    pending_->norm = gradients_.start_norm(false);
    groups_.world().confirm();
    gradient_scale_ = 1 / tokens;
    return before_->take();
  }
  const at::Tensor norm = at::zeros({1}, at::kDouble);
  if (options_.layout.owns_optimizer(groups_.rank())) {
    GradientReducer::Norm mine = gradients_.start_norm(true);
    norm.fill_(gradients_.finish(mine));
  }
  if (options_.layout.server_mode()) {
    comm::Work work = groups_.data().broadcast(norm, program::kServerRank,
                                               {.site = "norm", .algorithm = Algorithm::kDirect, .blocking = true});
    waits_.wait(work, "norm");
  }
  // The device has come past all reductions: one that was aborted is known by now, and must reach no weight.
  groups_.world().confirm();
  scale(norm.item<double>(), result_);
  if (std::isfinite(result_.grad_norm)) return;
  gradients_.check_finite();
  nonfinite(step_);
}

// By the norm of the summed gradients and the tokens of the step.
void Executor::scale(double norm, StepResult& result) {
  const auto tokens = static_cast<double>(result.tokens);
  result.grad_norm = norm / tokens;
  if (!std::isfinite(result.grad_norm)) return;
  result.clip_factor = optim::clip_factor(result.grad_norm, options_.max_grad_norm);
  clipped_ = result.clip_factor < 1;
  gradient_scale_ = result.clip_factor / tokens;
}

}  // namespace lockstep::engine
