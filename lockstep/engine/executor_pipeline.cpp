// How a rank hands over to the stages before and behind its own.
#include <ATen/ops/empty.h>

#include "lockstep/base/check.h"
#include "lockstep/engine/executor.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;

// Every rank of a tp group has the whole loss of its samples: the first one of those that hold the head.
bool Executor::counts_loss() const {
  return layers_.back() && (!tensor_ || tensor_->rank() == 0);
}

// [B, S, D], or [B S / tp, D] under sequence parallelism: the same on both sides.
void Executor::receive(const Action& action, const nn::Microbatch& microbatch) {
  const int64_t batch = microbatch.tokens.size(0), length = microbatch.tokens.size(1), width = options_.layout.model.hidden;
  std::vector<int64_t> shape = {batch, length, width};
  if (tensor_ && tensor_->sequence_parallel()) shape = {tensor_->local_rows(batch * length).size(), width};
  links_.recv(action, at::empty(shape, at::TensorOptions().dtype(compute_dtype()).device(options_.device)));
}

void Executor::send(const Action& action) {
  const auto [begin, end] = options_.layout.stage_layers(action.stage);
  const bool forward = action.kind == ActionKind::kSendForward;
  auto output = flowing_.extract({forward ? end : begin - 1, action.microbatch, !forward});
  LOCKSTEP_CHECK(!output.empty(), "stage ", action.stage, " has made nothing of microbatch ", action.microbatch);
  links_.send(action, std::move(output.mapped()));
  note_activations();
}

// From the layer before it in this direction, on this rank or another.
at::Tensor Executor::take_input(const Action& action) {
  const Flow flow{action.layer, action.microbatch, action.kind != ActionKind::kForward};
  if (at::Tensor arrived = links_.take(flow); arrived.defined()) {
    if (recorder_) recorder_->ready();
    return arrived;
  }
  auto found = flowing_.extract(flow);
  return found ? std::move(found.mapped()) : at::Tensor();
}

void Executor::trace_next_step(std::chrono::steady_clock::time_point start) {
  recorder_ = std::make_unique<StepRecorder>(options_.layout, program_, groups_, waits_, start);
}

plan::StepTrace Executor::take_trace() {
  plan::StepTrace trace = recorder_->finish(step_);
  recorder_.reset();
  return trace;
}

}  // namespace lockstep::engine
