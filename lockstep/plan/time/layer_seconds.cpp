#include <algorithm>
#include <optional>

#include "lockstep/plan/time/rank_layers.h"

namespace lockstep::plan {

using arch::Phase;
using program::Action;

RankLayers::RankLayers(const program::Layout& layout, const Placement& placement, const Stack& stack, const EstimateOptions& options, int rank, double speed)
    : layout_(layout), stack_(stack), rank_(rank), kernels_(placement.cluster().device, stack, options, speed), calls_(layout, placement, stack, options, rank) {}

int RankLayers::pattern(int layer) {
  const auto [entry, fresh] = patterns_.try_emplace(layer);
  if (fresh) entry->second = arch::layer_pattern(layout_.model, arch::layer_spec(layout_.model, layer));
  return entry->second;
}

const arch::LayerDescription& RankLayers::description(int layer) {
  const auto [entry, fresh] = descriptions_.try_emplace(pattern(layer));
  if (fresh) entry->second = program::description_of_calls(layout_, arch::layer_spec(layout_.model, layer));
  return entry->second;
}

const LayerKernels& RankLayers::kernels_of(int layer) {
  const auto [entry, fresh] = known_.try_emplace(pattern(layer));
  if (!fresh) return entry->second;
  const arch::LayerSpec spec = arch::layer_spec(layout_.model, layer);
  const arch::CostInput input = layout_.cost_input(rank_);
  return entry->second = rank_ == 0 ? kernels_.of(layout_.model, spec, input, description(layer)) : kernels_.of(layout_.model, spec, input);
}

const LayerCalls& RankLayers::calls_of(int layer, Phase phase, int part) {
  const auto [entry, fresh] = made_.try_emplace({pattern(layer), phase, part});
  if (fresh) entry->second = calls_.of_layer(program::tensor_calls(layout_, arch::layer_spec(layout_.model, layer), description(layer), phase, part));
  return entry->second;
}

// Full recomputation makes the calls of F, but for those whose result nobody needs.
void RankLayers::add_calls(int layer, Phase phase, int part, LayerSeconds::Part& sum) {
  LayerCalls calls = calls_of(layer, phase, part);
  if (phase == Phase::kRecompute) {
    const LayerCalls& whole = calls_of(layer, Phase::kForward, -1);
    const double outputs = stack_.recompute_outputs;
    calls.tensor += outputs * (whole.tensor - calls.tensor);
    calls.context += outputs * (whole.context - calls.context);
    calls.experts += outputs * (whole.experts - calls.experts);
  }
  sum.tensor = stack_.tensor_exposed * calls.tensor + std::max(0.0, calls.gathers - sum.products);
  sum.context = stack_.context_exposed * calls.context;
  sum.experts = stack_.expert_exposed * calls.experts;
}

LayerSeconds::Part RankLayers::make(int layer, Phase phase, int part) {
  const LayerKernels& all = kernels_of(layer);
  const auto of_part = [&](const PartTimes& times) { return part < 0 ? sum(times) : times[static_cast<size_t>(part)]; };
  KernelTimes kernels;
  if (phase == Phase::kForward) kernels = of_part(all.forward);
  if (phase == Phase::kInput || phase == Phase::kBackward) kernels = of_part(all.input);
  if (phase == Phase::kWeight || phase == Phase::kBackward) kernels += of_part(all.weight);
  if (phase == Phase::kRecompute) kernels = of_part(all.again);
  if (phase == Phase::kRestore) kernels = of_part(all.restore);
  LayerSeconds::Part seconds{.products = kernels.products, .attention = kernels.attention, .pointwise = kernels.pointwise};
  add_calls(layer, phase, part, seconds);
  return seconds;
}

LayerSeconds::Part RankLayers::of(int layer, Phase phase, int part) {
  const auto [entry, fresh] = parts_.try_emplace({pattern(layer), phase, part});
  if (fresh) entry->second = make(layer, phase, part);
  return entry->second;
}

LayerSeconds::Part RankLayers::of(const Action& action) {
  const std::optional<Phase> phase = program::phase_of(layout_, action);
  return phase ? of(action.layer, *phase, action.part) : LayerSeconds::Part{};
}

double RankLayers::exchange(const Action& action) {
  const LayerCalls calls = calls_.of_layer(program::tensor_calls(layout_, action));
  return calls.tensor + calls.context + calls.experts;
}

LayerSeconds layer_seconds(const program::Layout& layout, int layer, int rank, const Placement& placement, const Stack& stack, const EstimateOptions& options) {
  RankLayers times(layout, placement, stack, options, rank);
  LayerSeconds seconds{.forward = times.of(layer, Phase::kForward), .input = times.of(layer, Phase::kInput), .weight = times.of(layer, Phase::kWeight)};
  if (layout.model.layers >= layer && layer > 0) {
    seconds.restore = times.of(layer, Phase::kRestore);
    seconds.again = times.of(layer, Phase::kRecompute);
  }
  return seconds;
}

}  // namespace lockstep::plan
