#include "lockstep/engine/layer_runner.h"

#include <ATen/ops/empty.h>

#include "lockstep/base/check.h"
#include "lockstep/model/model.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;

LayerRunner::LayerRunner(const Parts& parts)
    : layout_(parts.layout),
      state_(parts.state),
      store_(parts.store),
      links_(parts.links),
      memory_(parts.memory),
      tensor_(parts.tensor),
      offload_(layout_.offload.activations ? std::make_unique<ActivationOffload>(*parts.copies, memory_.account()) : nullptr),
      training_(build(true, parts.seed, parts.rank)),
      evaluation_(build(false, parts.seed, parts.rank)) {}

LayerRunner::Layers LayerRunner::build(bool training, uint64_t seed, int rank) const {
  return model::build_layers(layout_.model, store_,
                             {.seed = seed, .training = training, .tensor = tensor_, .layers = layout_.layers_of(rank)});
}

void LayerRunner::add_handlers(Handlers& handlers) {
  handlers.add_prompt({ActionKind::kForward}, [this](const Action& action) { forward(action); });
  handlers.add_prompt({ActionKind::kRecompute}, [this](const Action& action) { recompute(action); });
  handlers.add_prompt({ActionKind::kBackward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight},
                      [this](const Action& action) { backward(action); });
  handlers.add({ActionKind::kSendForward, ActionKind::kSendBackward}, [this](const Action& action) { return send(action); });
  handlers.add({ActionKind::kRecvForward, ActionKind::kRecvBackward}, [this](const Action& action) { return receive(action); });
}

void LayerRunner::forward(const Action& action) {
  const nn::Microbatch& microbatch = state_.microbatch(action.microbatch);
  const Key key{action.layer, action.microbatch};
  const arch::Recompute recompute = layout_.recompute_of(action.layer);
  nn::Layer& layer = *(state_.training ? training_ : evaluation_)[static_cast<size_t>(action.layer)];
  const at::Tensor x = take_input(action);
  at::Tensor output;
  if (!state_.training) {
    output = layer.forward(x, microbatch, nullptr);
  } else if (recompute == arch::Recompute::kFull) {
    output = layer.forward(x, microbatch, nullptr);
    inputs_[key] = x;
  } else {
    std::unique_ptr<nn::Saved>& saved = saved_[key];
    output = layer.forward(x, microbatch, &saved);
    if (recompute == arch::Recompute::kSelective) layer.forget(*saved);
  }
  if (state_.training) memory_.note_workspace(memory_.live());
  if (output.defined()) flowing_[{action.layer + 1, action.microbatch, false}] = std::move(output);  // none of a head that trains
  if (state_.training) memory_.note_activations();
}

void LayerRunner::recompute(const Action& action) {
  const Key key{action.layer, action.microbatch};
  nn::Layer& layer = *training_[static_cast<size_t>(action.layer)];
  if (offload_ && offload_->fetched(key)) inputs_[key] = offload_->take(key);
  memory_.restart_peak();
  if (const auto input = inputs_.extract(key))
    saved_[key] = layer.recompute(input.mapped(), state_.microbatch(action.microbatch));
  else
    layer.restore(*saved_.at(key));
  memory_.note_workspace(memory_.live());
  memory_.note_activations();
}

void LayerRunner::backward(const Action& action) {
  const auto saved = saved_.find({action.layer, action.microbatch});
  LOCKSTEP_CHECK(saved != saved_.end(), "layer ", action.layer, " kept nothing for microbatch ", action.microbatch);
  nn::Layer& layer = *training_[static_cast<size_t>(action.layer)];
  int64_t baseline = memory_.live();
  at::Tensor dy = action.kind == ActionKind::kBackwardWeight ? at::Tensor() : take_input(action);
  at::Tensor dx;
  if (action.kind == ActionKind::kBackward) dx = layer.backward(dy, *saved->second);
  if (action.kind == ActionKind::kBackwardInput) dx = layer.backward_input(dy, *saved->second);
  if (action.kind == ActionKind::kBackwardWeight) layer.backward_weight(*saved->second);
  if (dx.defined()) {
    baseline += static_cast<int64_t>(dx.nbytes());
    flowing_[{action.layer - 1, action.microbatch, true}] = std::move(dx);
  }
  dy.reset();
  if (at::Tensor& loss = saved->second->loss; loss.defined())
    state_.losses[static_cast<size_t>(action.microbatch)] = std::exchange(loss, {});
  if (action.kind != ActionKind::kBackwardInput) saved_.erase(saved);
  memory_.note_workspace(baseline);
  memory_.note_activations();
}

// [B, S, D], or [B S / tp, D] under sequence parallelism: the same on both sides.
Started LayerRunner::receive(const Action& action) {
  const at::Tensor& tokens = state_.microbatch(action.microbatch).tokens;
  const int64_t batch = tokens.size(0), length = tokens.size(1), width = layout_.model.hidden;
  std::vector<int64_t> shape = {batch, length, width};
  if (tensor_ && tensor_->sequence_parallel()) shape = {tensor_->local_rows(batch * length).size(), width};
  const at::Tensor to = at::empty(shape, at::TensorOptions().dtype(store_.options().dtype).device(store_.options().device));
  Started started = links_.recv(action, to);
  if (state_.training) memory_.note_activations();
  return started;
}

Started LayerRunner::send(const Action& action) {
  const auto [begin, end] = layout_.stage_layers(action.stage);
  const bool forward = action.kind == ActionKind::kSendForward;
  auto output = flowing_.extract({forward ? end : begin - 1, action.microbatch, !forward});
  LOCKSTEP_CHECK(!output.empty(), "stage ", action.stage, " has made nothing of microbatch ", action.microbatch);
  Started started = links_.send(action, std::move(output.mapped()));
  memory_.note_activations();
  return started;
}

// From the layer before it in this direction, on this rank or another.
at::Tensor LayerRunner::take_input(const Action& action) {
  const Flow flow{action.layer, action.microbatch, action.kind != ActionKind::kForward};
  if (at::Tensor arrived = links_.take(flow); arrived.defined()) return arrived;
  auto found = flowing_.extract(flow);
  return found ? std::move(found.mapped()) : at::Tensor();
}

void LayerRunner::fetch(const Action& action) {
  offload_->fetch({action.layer, action.microbatch});
  memory_.note_activations();
}

void LayerRunner::evict(const Action& action) {
  auto input = inputs_.extract({action.layer, action.microbatch});
  LOCKSTEP_CHECK(!input.empty(), "layer ", action.layer, " kept no input of microbatch ", action.microbatch);
  offload_->evict({action.layer, action.microbatch}, std::move(input.mapped()));
  memory_.note_activations();
}

at::Tensor LayerRunner::take_output() {
  auto output = flowing_.extract({static_cast<int>(evaluation_.size()), 0, false});
  return output ? std::move(output.mapped()) : at::Tensor();
}

void LayerRunner::check_empty() const {
  LOCKSTEP_CHECK(saved_.empty() && inputs_.empty() && flowing_.empty(), "activations left after the last action");
}

void LayerRunner::abandon() {
  flowing_.clear();
  saved_.clear();
  inputs_.clear();
  if (offload_) offload_->clear();
}

}  // namespace lockstep::engine
