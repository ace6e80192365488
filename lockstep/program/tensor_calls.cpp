#include "lockstep/program/planned_calls.h"

#include <algorithm>
#include <optional>

namespace lockstep::program {
namespace {

std::optional<arch::Phase> phase_of(const Layout& layout, const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return arch::Phase::kForward;
    case ActionKind::kBackward:
      return arch::Phase::kBackward;
    case ActionKind::kBackwardInput:
      return arch::Phase::kInput;
    case ActionKind::kBackwardWeight:
      return arch::Phase::kWeight;
    case ActionKind::kRecompute:
      return layout.recompute_of(action.layer) == arch::Recompute::kFull ? arch::Phase::kRecompute : arch::Phase::kRestore;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::vector<PlannedCall> tensor_calls(const Layout& layout, const Action& action) {
  const std::optional<arch::Phase> phase = phase_of(layout, action);
  return phase ? tensor_calls(layout, action.layer, *phase) : std::vector<PlannedCall>();
}

std::vector<PlannedCall> tensor_calls(const Layout& layout, int layer, arch::Phase phase) {
  const GroupRef tensor = group_over(layout, mesh::Axis::kTp);
  const GroupRef experts = layout.model.has_experts() ? group_over(layout, layout.expert_ranks(), Channel::kExperts) : tensor;
  if (group_size(layout, tensor) == 1 && group_size(layout, experts) == 1) return {};
  const arch::LayerSpec spec = arch::layer_spec(layout.model, layer);
  // As it is on the first rank: its calls are those of all.
  const arch::LayerDescription description = arch::describe_layer(layout.model, spec, layout.cost_input(0));
  std::vector<bool> made(description.calls.size());
  for (const arch::Step& step : description.steps)
    if (step.what == arch::Step::What::kStart && step.phases.has(phase)) made[static_cast<size_t>(step.index)] = true;
  std::vector<PlannedCall> calls;
  for (size_t i = 0; i < made.size(); ++i) {
    if (!made[i]) continue;
    const arch::LayerCall& call = description.calls[i];
    const GroupRef& group = call.over == arch::CallGroup::kExperts ? experts : tensor;
    const int ranks = group_size(layout, group);
    if (ranks == 1) continue;
    const CallId id = call_of_layer(Purpose::kLayer, spec).of_part(call.part).with(call.phase);
    const int64_t at_once = call.at_once > 0 ? call.at_once : call.numel;
    for (int64_t begin = 0; begin < call.numel; begin += at_once) {
      PlannedCall& made_call = calls.emplace_back(
          tensor_call(id, call.collective, std::min(at_once, call.numel - begin), call.element_size, ranks));
      made_call.group = group;
      made_call.at_run_time = call.at_run_time;
    }
  }
  return calls;
}

PlannedCall tensor_call(const CallId& id, Collective collective, int64_t numel, int64_t element_size, int ranks) {
  const Algorithm algorithm = prompt_algorithm(collective, numel * element_size, ranks);
  return {.id = id,
          .collective = collective,
          .algorithm = algorithm,
          .order = order_of(collective, algorithm),
          .numel = numel,
          .element_size = element_size};
}

}  // namespace lockstep::program
