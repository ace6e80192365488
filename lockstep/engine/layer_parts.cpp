// F, B and I of divided layers, part by part, and what moves between the parts.
#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/engine/layer_runner.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;

void LayerRunner::forward_part(const Action& action) {
  const Key key{action.layer, action.microbatch};
  const Flow flow{action.layer, action.microbatch, false};
  nn::Layer& layer = *training_[static_cast<size_t>(action.layer)];
  const arch::Recompute recompute = step_.layout.recompute_of(action.layer);
  const bool keeps = recompute != arch::Recompute::kFull;
  const int64_t before = with_.memory.live();
  std::shared_ptr<nn::DividedPass>& pass = passes_[flow];
  if (action.part == 0) {
    const at::Tensor x = take(flow);
    if (!keeps) inputs_[key] = x;
    pass = layer.begin_forward(x, step_.state.microbatch(action.microbatch), keeps ? &saved_[key] : nullptr);
  }
  LOCKSTEP_CHECK(pass != nullptr, "layer ", action.layer, " is not divided");
  if (action.part == 1) pass->run_experts();
  if (ends_pass(action)) {
    flowing_[{action.layer + 1, action.microbatch, false}] = pass->finish();
    passes_.erase(flow);
    if (recompute == arch::Recompute::kSelective) layer.forget(*saved_.at(key));
  }
  with_.memory.note_workspace(std::max(before, with_.memory.live()));
  with_.memory.note_activations();
}

void LayerRunner::backward_part(const Action& action) {
  const auto saved = saved_.find({action.layer, action.microbatch});
  LOCKSTEP_CHECK(saved != saved_.end(), "layer ", action.layer, " kept nothing for microbatch ", action.microbatch);
  const Flow flow{action.layer, action.microbatch, true};
  nn::Layer& layer = *training_[static_cast<size_t>(action.layer)];
  const int64_t before = with_.memory.live();
  std::shared_ptr<nn::DividedPass>& pass = passes_[flow];
  if (action.part == 0) pass = layer.begin_backward_input(take(flow), *saved->second);
  LOCKSTEP_CHECK(pass != nullptr, "layer ", action.layer, " is not divided");
  if (action.part == 1) pass->run_experts();
  if (ends_pass(action)) {
    flowing_[{action.layer - 1, action.microbatch, true}] = pass->finish();
    passes_.erase(flow);
    if (action.kind == ActionKind::kBackward) {
      layer.backward_weight(*saved->second);
      saved_.erase(saved);
    }
  }
  with_.memory.note_workspace(std::max(before, with_.memory.live()));
}

// The next part is the first that uses it.
Started LayerRunner::exchange(const Action& action) {
  const auto found = passes_.find({action.layer, action.microbatch, program::words_of(action.kind).gradients});
  LOCKSTEP_CHECK(found != passes_.end(), program::action_name(action.kind), " of layer ", action.layer, ", of which no part has run");
  found->second->leave();
  return [pass = found->second] { pass->arrive(); };
}

}  // namespace lockstep::engine
