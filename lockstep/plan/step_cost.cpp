#include "lockstep/plan/step_cost.h"

#include <algorithm>

#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::plan {

using program::Action;
using program::ActionKind;
using program::Layout;
using program::Ledger;
using program::Moved;
using program::Pipeline;
using program::Program;
using program::ScheduleKind;
using program::layer_costs;
using program::predict_ledger;
using program::stage_ranks;

namespace {

struct Machine {
  double flops, memory, network, host, action;  // per second; the last in seconds
};
constexpr Machine kCpu{.flops = 50e9, .memory = 10e9, .network = 2e9, .host = 5e9, .action = 20e-6};
constexpr Machine kCuda{.flops = 300e12, .memory = 2e12, .network = 50e9, .host = 25e9, .action = 10e-6};

// Bytes that FETCH and EVICT copy: what is evicted unchanged is dropped.
double moved_bytes(const Layout& layout, const arch::FlatLayout& flat, const arch::LayerCost* cost, const Action& action) {
  if (action.moved == Moved::kActivation) return static_cast<double>(cost->kept);
  if (action.kind == ActionKind::kEvict) return 0;
  for (const arch::FlatUnit& unit : flat.units)
    if (unit.layer == action.unit)
      return static_cast<double>(unit.numel()) / flat.shards * static_cast<double>(layout.element_size());
  return 0;
}

// Of the time of a stage, beside it.
double fill(const Layout& layout) {
  const Pipeline& pipeline = layout.pipeline;
  const double share = static_cast<double>(pipeline.ranks - 1) /
                       static_cast<double>(pipeline.virtual_stages * layout.num_microbatches());
  if (pipeline.kind == ScheduleKind::kZbH1) return share / 3;
  return pipeline.kind == ScheduleKind::kZbH2 || pipeline.kind == ScheduleKind::kZbV ? 0 : share;
}

}  // namespace

StepCost step_cost(const Layout& layout, const Program& program, int rank) {
  const std::vector<arch::LayerCost> costs = layer_costs(layout, rank);
  const arch::FlatLayout flat = layout.flat_layout(rank);
  StepCost sum;
  for (const Action& action : program.list(rank)) {
    const arch::LayerCost* cost = action.layer >= 0 ? &costs.at(static_cast<size_t>(action.layer)) : nullptr;
    sum.actions += 1;
    if (action.kind == ActionKind::kForward) sum.flops += cost->forward_flops();
    if (action.kind == ActionKind::kBackward) sum.flops += cost->backward_flops();
    if (action.kind == ActionKind::kBackwardInput) sum.flops += cost->input_flops();
    if (action.kind == ActionKind::kBackwardWeight) sum.flops += cost->weight_flops();
    if (action.kind == ActionKind::kRecompute) {
      sum.pointwise += static_cast<double>(cost->memory_traffic);
      if (layout.recompute_of(action.layer) == arch::Recompute::kFull) sum.flops += cost->forward_flops();
    }
    if (action.kind == ActionKind::kFetch || action.kind == ActionKind::kEvict)
      sum.host += moved_bytes(layout, flat, cost, action);
    if (action.kind == ActionKind::kShardGrad && layout.offload.optimizer)
      sum.host += 4.0 * static_cast<double>(program.buckets.at(static_cast<size_t>(action.bucket)).numel()) / flat.shards;
  }
  const Ledger ledger = predict_ledger(layout, program, rank);
  for (const auto& [key, entry] : ledger.entries()) sum.network += static_cast<double>(entry.sent_total());
  return sum;
}

double seconds(const StepCost& cost, config::Device device) {
  const Machine& machine = device == config::Device::kCuda ? kCuda : kCpu;
  return cost.flops / machine.flops + cost.pointwise / machine.memory + cost.network / machine.network +
         cost.host / machine.host + cost.actions * machine.action;
}

double step_seconds(const Layout& layout, const Program& program, int rank, config::Device device) {
  if (layout.pipeline.ranks == 1) return seconds(step_cost(layout, program, rank), device);
  double slowest = 0;
  for (const int of_stage : stage_ranks(layout))
    slowest = std::max(slowest, seconds(step_cost(layout, program, of_stage), device));
  return slowest * (1 + fill(layout));
}

}  // namespace lockstep::plan
