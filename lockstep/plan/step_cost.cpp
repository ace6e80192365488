#include "lockstep/plan/step_cost.h"

#include <algorithm>

#include "lockstep/plan/bubble.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::plan {

using program::Access;
using program::Action;
using program::Layout;
using program::Program;
using program::Resource;
using program::Touch;
using program::Work;

namespace {

struct Machine {
  double flops, memory, network, host, action;  // per second; the last in seconds
};
constexpr Machine kCpu{.flops = 50e9, .memory = 10e9, .network = 2e9, .host = 5e9, .action = 20e-6};
constexpr Machine kCuda{.flops = 300e12, .memory = 2e12, .network = 50e9, .host = 25e9, .action = 10e-6};

// What orthogonalising takes: of the matrices that the rank owns, the most that any member has; and of those that it has whole.
double owned_flops(const program::MatrixPlan& matrices, int unit, int iterations) {
  std::map<int, double> owned;
  double most = 0;
  for (const program::ScatteredMatrix& matrix : matrices.of(unit))
    most = std::max(most, owned[matrix.owner] += matrix.flops(iterations));
  return most;
}

double whole_flops(const Layout& layout, int rank, int unit) {
  double flops = 0;
  for (const arch::ParamSpec& spec : layout.param_table(rank))
    if ((unit < 0 || spec.unit == unit) && spec.update.optimizer->whole_matrix && !arch::is_scattered_matrix(spec, layout.shards(spec.group)))
      flops += layout.optimizer.ns_steps * arch::iteration_flops(spec.shape[0], spec.shape[1]);
  return flops;
}

}  // namespace

PartWork work_of_part(const Action& action, const arch::LayerCost& cost) {
  if (action.part < 0) return {};
  const bool forward = program::work_of(action.kind) == Work::kForward;
  const arch::PartCost& parts = forward ? cost.forward_parts : program::adds_to_weights(action.kind) ? cost.backward_parts : cost.input_parts;
  const double flops = parts.flops[static_cast<size_t>(action.part)], all = parts.flops[0] + parts.flops[1] + parts.flops[2];
  return {.flops = flops, .share = all > 0 ? flops / all : 1.0 / program::kParts};
}

Prices::Prices(const Layout& layout, const Program& program, int rank, bool with_calls)
    : layout_(layout),
      rank_(rank),
      with_calls_(with_calls),
      calls_(layout, program, rank),
      costs_(layer_costs(layout, rank)),
      flat_(layout.flat_layout(rank)),
      effects_(layout, program.buckets, rank),
      moves_(layout, program, rank),
      matrices_(layout, rank) {}

const Price& Prices::of(const Action& action) {
  const auto [entry, fresh] = known_.try_emplace(without_microbatch(action));
  Price& price = entry->second;
  if (!fresh) return price;
  add_work(action, price);
  add_calls(action, price);
  add_touched(effects_.of(action), price);
  for (const program::Move& move : moves_.of(action)) price.moves.push_back(static_cast<double>(move.bytes));
  return price;
}

void Prices::add_work(const Action& action, Price& price) const {
  const Work work = program::work_of(action.kind);
  if (action.layer < 0 || work == Work::kNone) return;
  const arch::LayerCost& cost = costs_.at(static_cast<size_t>(action.layer));
  if (work == Work::kForward) price.flops = cost.forward_flops;
  if (work == Work::kInputAndWeight) price.flops = cost.backward_flops;
  if (work == Work::kInput) price.flops = cost.input_flops();
  if (work == Work::kWeight) price.flops = cost.weight_flops;
  if (action.part >= 0) {
    const PartWork part = work_of_part(action, cost);
    price.flops = part.flops;
    price.share = part.share;
  }
  if (work != Work::kAgain) return;
  price.pointwise = static_cast<double>(cost.memory_traffic);
  if (layout_.recompute_of(action.layer) == arch::Recompute::kFull) price.flops = cost.forward_flops;
}

void Prices::add_calls(const Action& action, Price& price) {
  for (const program::PlannedCall& planned : calls_.of(action)) {
    const program::CallOfRank of_rank = program::call_of_rank(layout_, rank_, planned);
    price.sent += static_cast<double>(program::predicted_bytes(of_rank.call, of_rank.group_rank));
    if (!with_calls_ || program::is_transfer(action.kind)) continue;
    int64_t most = 0;
    for (int i = 0; i < static_cast<int>(of_rank.call.group.size()); ++i)
      most = std::max(most, program::predicted_bytes(of_rank.call, i));
    price.calls.push_back(static_cast<double>(most));
  }
}

void Prices::add_touched(const program::Effects& effects, Price& price) const {
  for (const Touch& touch : effects.touches) {
    if (effects.lane == program::Lane::kChannel && touch.how == Access::kConsume) {
      const int maker = touch.what == Resource::kInput ? touch.index - 1 : touch.index;  // or whose output it is the gradient of
      price.handed_over = static_cast<double>(costs_.at(static_cast<size_t>(maker)).output);
    }
    if (touch.what == Resource::kNorm && touch.how == Access::kCreate) price.norm = true;
    if (touch.what == Resource::kDirections && touch.how == Access::kUpdate)
      price.flops += owned_flops(matrices_, touch.index, layout_.optimizer.ns_steps);
    if (touch.what != Resource::kStates || effects.lane != program::Lane::kCompute) continue;
    const bool all = touch.index == program::kEvery;
    price.updated = all ? 1 : static_cast<double>(flat_.units[flat_.index_of(touch.index)].part());
    price.parameters = all ? 1 : static_cast<double>(flat_.parts);
    price.flops += whole_flops(layout_, rank_, touch.index);
  }
}

StepCost step_cost(const Layout& layout, const Program& program, int rank) {
  Prices prices(layout, program, rank, /*with_calls=*/false);
  StepCost sum;
  for (const Action& action : program.list(rank)) {
    const Price& price = prices.of(action);
    sum.flops += price.flops;
    sum.pointwise += price.pointwise;
    sum.network += price.sent;
    for (const double bytes : price.moves) sum.host += bytes;
    sum.actions += 1;
  }
  return sum;
}

double seconds(const StepCost& cost, config::Device device) {
  const Machine& machine = device == config::Device::kCuda ? kCuda : kCpu;
  return cost.flops / machine.flops + cost.pointwise / machine.memory + cost.network / machine.network +
         cost.host / machine.host + cost.actions * machine.action;
}

double step_seconds(const Layout& layout, const program::JudgedSteps& steps, int rank, config::Device device) {
  const auto seconds_of = [&](int of) {
    return steps.sum_of_step([&](const program::MadeStep& step) { return seconds(step_cost(step.layout, step.program, of), device); });
  };
  if (layout.pipeline.ranks == 1) return seconds_of(rank);
  double slowest = 0;
  for (const int of_stage : stage_ranks(layout)) slowest = std::max(slowest, seconds_of(of_stage));
  return slowest * (1 + fill_share(program::schedule_of(layout)));
}

}  // namespace lockstep::plan
