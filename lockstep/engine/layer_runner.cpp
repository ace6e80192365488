#include "lockstep/engine/layer_runner.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>

#include "lockstep/base/check.h"
#include "lockstep/model/model.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;

LayerRunner::LayerRunner(const StepView& step, const Parts& parts)
    : step_(step),
      with_(parts),
      offload_(step.layout.offload.activations ? std::make_unique<ActivationOffload>(*parts.copies, parts.memory.account()) : nullptr),
      training_(build(true)),
      evaluation_(build(false)) {}

LayerRunner::Layers LayerRunner::build(bool training) const {
  return model::build_layers(step_.layout.model, step_.store,
                             {.seed = step_.options.seed,
                              .training = training,
                              .tensor = with_.tensor,
                              .experts = with_.experts,
                              .context = with_.context,
                              .moe = step_.layout.moe,
                              .layers = step_.layout.layers_of(step_.groups.rank())});
}

void LayerRunner::add_handlers(Handlers& handlers) {
  handlers.add_prompt({ActionKind::kForward}, [this](const Action& action) { forward(action); });
  handlers.add_prompt({ActionKind::kRecompute}, [this](const Action& action) { recompute(action); });
  handlers.add_prompt({ActionKind::kBackward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight},
                      [this](const Action& action) { backward(action); });
  handlers.add({ActionKind::kDispatchForward, ActionKind::kCombineForward, ActionKind::kCombineBackward, ActionKind::kDispatchBackward},
               [this](const Action& action) { return exchange(action); });
  handlers.add({ActionKind::kSendForward, ActionKind::kSendBackward}, [this](const Action& action) { return send(action); });
  handlers.add({ActionKind::kRecvForward, ActionKind::kRecvBackward}, [this](const Action& action) { return receive(action); });
  using program::Moved;
  handlers.add({{ActionKind::kFetch, Moved::kActivation}}, [this](const Action& action) { return fetch(action); });
  handlers.add_prompt({{ActionKind::kEvict, Moved::kActivation}}, [this](const Action& action) { evict(action); });
}

void LayerRunner::forward(const Action& action) {
  if (action.part >= 0) return forward_part(action);
  const nn::Microbatch& microbatch = step_.state.microbatch(action.microbatch);
  const Key key{action.layer, action.microbatch};
  const arch::Recompute recompute = step_.layout.recompute_of(action.layer);
  nn::Layer& layer = *(step_.state.training ? training_ : evaluation_)[static_cast<size_t>(action.layer)];
  const at::Tensor x = take({action.layer, action.microbatch, false});
  const bool keeps = step_.state.training && recompute != arch::Recompute::kFull;
  at::Tensor output = layer.forward(x, microbatch, keeps ? &saved_[key] : nullptr);
  if (keeps && recompute == arch::Recompute::kSelective) layer.forget(*saved_[key]);
  if (step_.state.training && !keeps) inputs_[key] = x;
  if (output.defined()) flowing_[{action.layer + 1, action.microbatch, false}] = std::move(output);  // none of a head that trains
  if (!step_.state.training) return;
  with_.memory.note_workspace(with_.memory.live());
  with_.memory.note_activations();  // the input is there still
}

void LayerRunner::recompute(const Action& action) {
  const Key key{action.layer, action.microbatch};
  nn::Layer& layer = *training_[static_cast<size_t>(action.layer)];
  if (offload_ && offload_->fetched(key)) inputs_[key] = offload_->take(key);
  with_.memory.restart_peak();
  if (const auto input = inputs_.extract(key))
    saved_[key] = layer.recompute(input.mapped(), step_.state.microbatch(action.microbatch));
  else
    layer.restore(*saved_.at(key));
  with_.memory.note_workspace(with_.memory.live());
}

void LayerRunner::backward(const Action& action) {
  if (action.part >= 0) return backward_part(action);
  const auto saved = saved_.find({action.layer, action.microbatch});
  LOCKSTEP_CHECK(saved != saved_.end(), "layer ", action.layer, " kept nothing for microbatch ", action.microbatch);
  nn::Layer& layer = *training_[static_cast<size_t>(action.layer)];
  int64_t baseline = with_.memory.live();
  at::Tensor dy = action.kind == ActionKind::kBackwardWeight ? at::Tensor() : take({action.layer, action.microbatch, true});
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
    step_.state.losses[static_cast<size_t>(action.microbatch)] = std::exchange(loss, {});
  if (action.kind != ActionKind::kBackwardInput) saved_.erase(saved);
  with_.memory.note_workspace(baseline);
}

// [B, T, D] of T tokens here of each sequence, or [B T / tp, D] under sequence parallelism: the same on both sides.
Started LayerRunner::receive(const Action& action) {
  const at::Tensor& tokens = step_.state.microbatch(action.microbatch).tokens;
  const int64_t batch = tokens.size(0), length = tokens.size(1), width = step_.layout.model.hidden;
  std::vector<int64_t> shape = {batch, length, width};
  if (with_.tensor && with_.tensor->sequence_parallel()) shape = {with_.tensor->local_rows(batch * length).size(), width};
  const bool forward = program::transfer_of(action).forward;
  const auto [begin, end] = step_.layout.stage_layers(action.stage);
  const Flow flow{forward ? begin : end - 1, action.microbatch, !forward};
  const auto [coming, fresh] = flowing_.emplace(flow, at::empty(shape, step_.store.compute_options()));
  LOCKSTEP_CHECK(fresh, "stage ", action.stage, " waits for microbatch ", action.microbatch, " already");
  if (coming->second.numel() == 0) return {};
  return step_.start(step_.planned(action), {.input = coming->second}, "pp recv");
}

Started LayerRunner::send(const Action& action) {
  const auto [begin, end] = step_.layout.stage_layers(action.stage);
  const bool forward = program::transfer_of(action).forward;
  auto output = flowing_.extract({forward ? end : begin - 1, action.microbatch, !forward});
  LOCKSTEP_CHECK(!output.empty(), "stage ", action.stage, " has made nothing of microbatch ", action.microbatch);
  if (output.mapped().numel() == 0) return {};  // no row of the sequence is this rank's
  const program::PlannedCall& call = step_.planned(action);
  std::deque<Sent>& channel = sent_[call.group];
  if (std::ssize(channel) == with_.depth) {
    step_.waits.wait(channel.front().work, "pp send");
    channel.pop_front();
  }
  Sent& last = channel.emplace_back(Sent{.tensor = std::move(output.mapped()), .work = {}});
  last.work = execute(step_.groups, call, {.input = last.tensor});
  return [this] { wait_for_sends(); };
}

// For all of them: who asks for one asks at the end of the step.
void LayerRunner::wait_for_sends() {
  for (auto& [channel, sent] : sent_)
    for (Sent& each : sent) step_.waits.wait(each.work, "pp send");
  sent_.clear();
}

at::Tensor LayerRunner::take(const Flow& flow) {
  auto found = flowing_.extract(flow);
  return found ? std::move(found.mapped()) : at::Tensor();
}

Started LayerRunner::fetch(const Action& action) {
  return [copy = offload_->fetch({action.layer, action.microbatch})]() mutable { copy.order_after(); };
}

void LayerRunner::evict(const Action& action) {
  auto input = inputs_.extract({action.layer, action.microbatch});
  LOCKSTEP_CHECK(!input.empty(), "layer ", action.layer, " kept no input of microbatch ", action.microbatch);
  offload_->evict({action.layer, action.microbatch}, std::move(input.mapped()));
}

std::vector<double> LayerRunner::take_loads() {
  std::vector<double> all(static_cast<size_t>(step_.layout.load_numbers()), 0.0);
  for (size_t layer = 0; layer < training_.size(); ++layer) {
    const std::vector<double> loads = training_[layer] ? training_[layer]->take_loads() : std::vector<double>();
    if (loads.empty()) continue;
    const auto begin = static_cast<size_t>(step_.layout.load_offset(static_cast<int>(layer)));
    LOCKSTEP_CHECK(begin + loads.size() <= all.size(), "layer ", layer, " has ", loads.size(), " loads");
    std::ranges::copy(loads, all.begin() + static_cast<ptrdiff_t>(begin));
  }
  return all;
}

void LayerRunner::set_last_loads(std::span<const double> loads) {
  const auto experts = static_cast<size_t>(step_.layout.model.experts.count);
  for (const Layers* layers : {&training_, &evaluation_})
    for (size_t layer = 0; layer < layers->size(); ++layer) {
      const auto index = static_cast<int>(layer);
      if (!(*layers)[layer] || !step_.layout.is_expert_block(index)) continue;
      const auto begin = static_cast<size_t>(step_.layout.load_offset(index));
      (*layers)[layer]->set_last_loads(loads.empty() ? loads : loads.subspan(begin, experts));
    }
}

at::Tensor LayerRunner::take_output() {
  return take({static_cast<int>(evaluation_.size()), 0, false});
}

void LayerRunner::check_empty() const {
  LOCKSTEP_CHECK(saved_.empty() && inputs_.empty() && flowing_.empty() && passes_.empty(), "activations left after the last action");
}

void LayerRunner::abandon() {
  flowing_.clear();
  passes_.clear();  // they write into what is kept
  saved_.clear();
  inputs_.clear();
  if (offload_) offload_->clear();
}

}  // namespace lockstep::engine
