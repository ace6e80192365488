#include "lockstep/program/planned_calls.h"

#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"

namespace lockstep::program {
namespace {

// Which calls of a phase are wanted of a divided layer.
struct Wanted {
  int part = -1;            // those that its part makes; -1: of all parts
  int way = -1;             // 0: rows on their way to the experts, 1: back; -1: neither
  bool all() const { return part < 0 && way < 0; }
};
Wanted wanted_of(const Action& action) {
  if (exchanges(action.kind)) return {.way = leads_to_experts(action.kind) ? 0 : 1};
  return {.part = action.part};
}

// By call of a layer whether the phase makes it and it is wanted.
std::vector<bool> calls_made(const arch::LayerDescription& description, arch::Phase phase, const Wanted& wanted) {
  std::vector<bool> made(description.calls.size());
  int part = 0;
  for (const arch::Step& step : description.steps) {
    if (step.what != arch::Step::What::kStart || !step.phases.has(phase)) continue;
    const auto index = static_cast<size_t>(step.index);
    const arch::RowsWay rows = arch::rows_way(description.calls[index]);
    const int way = rows == arch::RowsWay::kNone ? -1 : rows == arch::RowsWay::kToExperts ? 0 : 1;
    if (way >= 0) part = way + 1;
    // The weights are the last part's work.
    const int of = way >= 0 ? -1 : phase == arch::Phase::kBackward && !step.phases.has(arch::Phase::kInput) ? kParts - 1 : part;
    made[index] = made[index] || wanted.all() || (wanted.way >= 0 ? wanted.way == way : wanted.part == of);
  }
  return made;
}

GroupRef group_of(const Layout& layout, arch::CallGroup over) {
  switch (over) {
    case arch::CallGroup::kTensor:
      return group_over(layout, mesh::Axis::kTp);
    case arch::CallGroup::kExperts:
      return group_over(layout, layout.expert_ranks(), Channel::kExperts);
    case arch::CallGroup::kExpertNodes:
      return group_over(layout, layout.expert_nodes(), Channel::kExperts);
    case arch::CallGroup::kExpertNode:
      return group_over(layout, layout.expert_node(), Channel::kExperts);
    case arch::CallGroup::kContext:
      return group_over(layout, mesh::Axis::kCp, Channel::kContext);
    case arch::CallGroup::kContextInner:
      return group_over(layout, layout.context_inner_ranks(), Channel::kContext);
    case arch::CallGroup::kContextOuter:
      return group_over(layout, layout.context_outer_ranks(), Channel::kContext);
  }
  throw InternalError("no such group of a layer's calls");
}

void add_calls(const Layout& layout, const CallId& layer, const arch::LayerCall& call, std::vector<PlannedCall>& calls) {
  const GroupRef group = group_of(layout, call.over);
  const int ranks = group_size(layout, group);
  if (ranks == 1) return;
  const CallId id = layer.of_part(call.part).with(call.phase);
  const int64_t at_once = call.at_once > 0 ? call.at_once : call.numel;
  for (int64_t begin = 0; begin < call.numel; begin += at_once) {
    PlannedCall& made = calls.emplace_back(
        tensor_call(id, call.collective, std::min(at_once, call.numel - begin), call.element_size, ranks));
    made.group = group;
    made.at_run_time = call.at_run_time;
    made.most = call.most;
    made.in_rounds = call.in_rounds;
    if (!call.direct) continue;
    made.algorithm = Algorithm::kDirect;
    made.order = order_of(call.collective, Algorithm::kDirect);
  }
}

bool communicates(const Layout& layout) {
  const bool has_experts = layout.model.has_experts() && layout.ep * layout.etp > 1;
  return has_experts || layout.mesh.degree(mesh::Axis::kTp | mesh::Axis::kCp) > 1;
}

std::vector<PlannedCall> calls_of_layer(const Layout& layout, const arch::LayerSpec& spec, const arch::LayerDescription& description, arch::Phase phase,
                                        const Wanted& wanted) {
  const std::vector<bool> made = calls_made(description, phase, wanted);
  const CallId layer_id = call_of_layer(Purpose::kLayer, spec);
  std::vector<PlannedCall> calls;
  for (size_t i = 0, end = 0; i < made.size(); i = end) {
    const int64_t rounds = description.calls[i].rounds;
    for (end = i + 1; description.calls[end - 1].turns_with_next;) ++end;
    for (int64_t round = 0; round < rounds; ++round)
      for (size_t one = i; one < end; ++one)
        if (made[one]) add_calls(layout, layer_id, description.calls[one], calls);
  }
  return calls;
}

std::vector<PlannedCall> calls_of_layer(const Layout& layout, int layer, arch::Phase phase, const Wanted& wanted) {
  if (!communicates(layout)) return {};
  const arch::LayerSpec spec = arch::layer_spec(layout.model, layer);
  return calls_of_layer(layout, spec, description_of_calls(layout, spec), phase, wanted);
}

}  // namespace

std::optional<arch::Phase> phase_of(const Layout& layout, const Action& action) {
  switch (action.kind) {
    case ActionKind::kDispatchForward:
    case ActionKind::kCombineForward:
      return arch::Phase::kForward;
    case ActionKind::kCombineBackward:
    case ActionKind::kDispatchBackward:  // the same of B and of I
      return arch::Phase::kInput;
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

// As it is on the first rank: its calls are those of all.
arch::LayerDescription description_of_calls(const Layout& layout, const arch::LayerSpec& layer) {
  return arch::describe_layer(layout.model, layer, layout.cost_input(0));
}

std::vector<PlannedCall> tensor_calls(const Layout& layout, const Action& action) {
  const std::optional<arch::Phase> phase = phase_of(layout, action);
  return phase ? calls_of_layer(layout, action.layer, *phase, wanted_of(action)) : std::vector<PlannedCall>();
}

std::vector<PlannedCall> tensor_calls(const Layout& layout, int layer, arch::Phase phase) {
  return calls_of_layer(layout, layer, phase, {});
}

std::vector<PlannedCall> tensor_calls(const Layout& layout, const arch::LayerSpec& layer, const arch::LayerDescription& description, arch::Phase phase, int part) {
  return communicates(layout) ? calls_of_layer(layout, layer, description, phase, {.part = part}) : std::vector<PlannedCall>();
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
