#include <algorithm>

#include "lockstep/plan/time/rank_layers.h"

namespace lockstep::plan {

using program::Action;
using program::ActionKind;
using program::Work;

RankLayers::RankLayers(const program::Layout& layout, const Placement& placement, const Stack& stack, const EstimateOptions& options, int rank, double speed)
    : layout_(layout), stack_(stack), rank_(rank), kernels_(placement.cluster().device, stack, options, speed), calls_(layout, placement, stack, options, rank) {}

int RankLayers::pattern(int layer) {
  const auto [entry, fresh] = patterns_.try_emplace(layer);
  if (fresh) entry->second = arch::layer_pattern(layout_.model, arch::layer_spec(layout_.model, layer));
  return entry->second;
}

const LayerKernels& RankLayers::kernels_of(int layer) {
  const auto [entry, fresh] = known_.try_emplace(pattern(layer));
  if (fresh) entry->second = kernels_.of(layout_.model, arch::layer_spec(layout_.model, layer), layout_.cost_input(rank_));
  return entry->second;
}

KernelTimes RankLayers::kernels_of(const Action& action) {
  const LayerKernels& all = kernels_of(action.layer);
  const bool full = layout_.recompute_of(action.layer) == arch::Recompute::kFull;
  const auto part = [&](const PartTimes& times) { return action.part < 0 ? sum(times) : times[static_cast<size_t>(action.part)]; };
  switch (program::work_of(action.kind)) {
    case Work::kForward:
      return part(all.forward);
    case Work::kInput:
      return part(all.input);
    case Work::kWeight:
      return part(all.weight);
    case Work::kInputAndWeight: {
      KernelTimes both = part(all.input);
      return both += part(all.weight);
    }
    case Work::kAgain:
      return part(full ? all.again : all.restore);
    case Work::kNone:
      return {};
  }
  return {};
}

// Full recomputation makes the calls of F, but for those whose result nobody needs.
void RankLayers::add_calls(const Action& action, LayerSeconds::Part& part) {
  LayerCalls calls = calls_.of_layer(program::tensor_calls(layout_, action));
  if (program::work_of(action.kind) == Work::kAgain && layout_.recompute_of(action.layer) == arch::Recompute::kFull) {
    const LayerCalls whole = calls_.of_layer(program::tensor_calls(layout_, action.layer, arch::Phase::kForward));
    const double outputs = stack_.recompute_outputs;
    calls.tensor += outputs * (whole.tensor - calls.tensor);
    calls.context += outputs * (whole.context - calls.context);
    calls.experts += outputs * (whole.experts - calls.experts);
  }
  part.tensor = stack_.tensor_exposed * calls.tensor + std::max(0.0, calls.gathers - part.products);
  part.context = stack_.context_exposed * calls.context;
  part.experts = stack_.expert_exposed * calls.experts;
}

LayerSeconds::Part RankLayers::make(const Action& action) {
  const KernelTimes kernels = kernels_of(action);
  LayerSeconds::Part part{.products = kernels.products, .attention = kernels.attention, .pointwise = kernels.pointwise};
  add_calls(action, part);
  return part;
}

LayerSeconds::Part RankLayers::of(const Action& action) {
  const auto [entry, fresh] = parts_.try_emplace({pattern(action.layer), layout_.recompute_of(action.layer), action.kind, action.part});
  if (fresh) entry->second = make(action);
  return entry->second;
}

double RankLayers::exchange(const Action& action) {
  const LayerCalls calls = calls_.of_layer(program::tensor_calls(layout_, action));
  return calls.tensor + calls.context + calls.experts;
}

LayerSeconds layer_seconds(const program::Layout& layout, int layer, int rank, const Placement& placement, const Stack& stack, const EstimateOptions& options) {
  RankLayers times(layout, placement, stack, options, rank);
  const auto of = [&](ActionKind kind) { return times.of({.kind = kind, .layer = layer}); };
  LayerSeconds seconds{.forward = of(ActionKind::kForward), .input = of(ActionKind::kBackwardInput), .weight = of(ActionKind::kBackwardWeight)};
  if (layout.recompute_of(layer) != arch::Recompute::kNone) seconds.recompute = of(ActionKind::kRecompute);
  return seconds;
}

}  // namespace lockstep::plan
