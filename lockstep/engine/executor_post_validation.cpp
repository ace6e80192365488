// A step whose update goes ahead of the norm, and what is done where that was wrong: program/post_validation.h.
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/engine/executor.h"
#include "lockstep/program/passes/post_validation.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;

void Executor::start_tokens() {
  tokens_.sums = at::tensor({static_cast<double>(tokens_here())}, at::kDouble);
  tokens_.work = groups_.data().all_reduce(tokens_.sums, {.site = "tokens", .algorithm = program::Algorithm::kDirect});
}

// All stages of a copy of the model see the same samples.
double Executor::wait_for_tokens() {
  if (options_.layout.mesh.degree(mesh::kDataAxes) == 1) return static_cast<double>(tokens_here());
  waits_.wait(tokens_.work, "tokens");
  return tokens_.sums.item<double>();
}

// The gradients of the step before are there until here.
void Executor::validate() {
  if (pending_) {
    validated_ = outcome();
    begins_again_ = validated_->clip_factor < 1;
    if (begins_again_) {
      forget_forward();
      update_again();
    }
    pending_.reset();
    if (begins_again_) return;
  }
  gradients_.start_step();
}

std::optional<StepResult> Executor::settle() {
  if (!pending_) return std::nullopt;
  const MemoryScope scope(memory_, kStepMemory);
  const StepResult found = outcome();
  if (found.clip_factor < 1) update_again();
  pending_.reset();
  result_ = found;
  return found;
}

// Of the pending step; the same on all ranks.
StepResult Executor::outcome() {
  StepResult found;
  waits_.wait(pending_->loss.work, "loss");
  const double* sums = pending_->loss.sums.const_data_ptr<double>();
  found.tokens = std::llround(sums[1]);
  LOCKSTEP_CHECK(found.tokens > 0, "a step without a single valid target");
  found.loss = sums[0] / sums[1];
  const double norm = gradients_.finish(pending_->norm);
  groups_.world().confirm();
  scale(norm, found);
  if (sums[2] == 0 && std::isfinite(found.grad_norm)) return found;
  before_->restore();
  if (sums[2] == 0) gradients_.check_finite();
  const int64_t step = pending_->step;
  pending_.reset();
  nonfinite(step);
  return found;
}

// What this step has computed with parameters that are wrong, and what others have sent of it.
void Executor::forget_forward() {
  for (const Action& action : program::unreceived(program_, options_.layout, groups_.rank()))
    receive(action, microbatches_->at(static_cast<size_t>(action.microbatch)));
  links_.drop();
  flowing_.clear();
  saved_.clear();
  inputs_.clear();
  if (tokens_.sums.defined()) waits_.wait(tokens_.work, "tokens");  // it is counted again
}

// By the scale that outcome() has found.
void Executor::update_again() {
  gather_.ready();
  before_->restore();
  const int64_t step = std::exchange(step_, pending_->step);
  const double lr = std::exchange(lr_, pending_->lr);
  const std::vector<Action>& actions = program_.list(groups_.rank());
  const auto first = std::ranges::find(actions, ActionKind::kStep, &Action::kind);
  for (auto action = first; action != actions.end(); ++action) handle(*action);
  step_ = step;
  lr_ = lr;
}

}  // namespace lockstep::engine
