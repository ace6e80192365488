// How long each action takes.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/action_prices.h"
#include "lockstep/plan/cost_file.h"
#include "lockstep/plan/simulate.h"

namespace lockstep::plan {
namespace {

using program::Action;
using program::Layout;
using program::Program;
using program::Work;

template <typename Function>
ActionTimes times_of(const Program& program, const Function& seconds) {
  ActionTimes times;
  for (int rank = 0; rank < program.world_size(); ++rank) {
    std::vector<double>& row = times.seconds.emplace_back();
    row.reserve(program.list(rank).size());
    for (const Action& action : program.list(rank)) row.push_back(seconds(ActionRef{rank, static_cast<int>(row.size())}, action));
  }
  return times;
}

// Of what an action asks for (action_prices.h).
double seconds_of(const Action& action, const Price& price, const Layout& layout, const StepCosts& costs) {
  const auto work = [&](const WorkCost& cost) { return price.share * cost.of(layout, action.layer); };
  double sum = (price.norm ? costs.norm : 0) + costs.step * price.updated / price.parameters;
  if (program::work_of(action.kind) == Work::kForward) sum += work(costs.forward);
  if (program::goes_back(action.kind)) sum += work(costs.input);
  if (program::adds_to_weights(action.kind)) sum += work(costs.weight);
  if (program::work_of(action.kind) == Work::kAgain) sum += work(costs.recompute);
  double calls = 0;
  for (const double bytes : price.calls) calls += costs.collective.seconds(bytes);
  for (const double bytes : price.moves) sum += costs.copy.seconds(bytes);
  if (price.handed_over > 0) sum += costs.transfer.seconds(price.handed_over);
  return sum + calls;
}

// When a transfer was over: for who waited, once that woke up.
double end_of(const Transfer& transfer, const Program& program, const Spans& measured) {
  const double end = of_action(measured, transfer.recv).end;
  if (transfer.user.rank < 0) return end;
  const ActionRef before = computed_up_to(program, {transfer.user.rank, transfer.user.index - 1});
  const bool waited = end > (before.rank < 0 ? 0 : of_action(measured, before).end);
  return waited ? std::max(end, of_action(measured, transfer.user).start) : end;
}

}  // namespace

ActionTimes unit_times(const Program& program, const Layout& layout) {
  std::optional<std::vector<arch::LayerCost>> costs;  // where layers are divided
  ActionTimes times = times_of(program, [&](const ActionRef&, const Action& action) {
    if (!program::computes(action.kind)) return 0.0;
    double whole = program::work_of(action.kind) == Work::kInputAndWeight ? 2 : 1;
    if (action.layer < 0) return whole;
    if (action.part >= 0) {
      if (!costs) costs = layer_costs(layout, 0);
      whole *= part_share(action, costs->at(static_cast<size_t>(action.layer)));
    }
    const auto [begin, end] = layout.stage_layers(layout.pipeline.stage_of(action.layer));
    return whole * (1.0 / (end - begin));
  });
  times.in_units = true;
  times.source = "equal stages";
  return times;
}

ActionTimes cost_times(const Program& program, const Layout& layout, const StepCosts& costs) {
  std::optional<Prices> prices;  // of the rank at hand
  ActionTimes times = times_of(program, [&](const ActionRef& ref, const Action& action) {
    if (ref.index == 0) prices.emplace(layout, program, ref.rank);
    return seconds_of(action, prices->of(action), layout, costs);
  });
  times.source = costs.source;
  return times;
}

ActionTimes measured_times(const Program& program, const Layout& layout, const Spans& measured) {
  LOCKSTEP_CHECK_EQ(static_cast<int>(measured.size()), program.world_size());
  ActionTimes times = times_of(program, [&](const ActionRef& ref, const Action&) { return of_action(measured, ref).seconds(); });
  const Matching matching = match(program, layout);
  for (const Transfer& transfer : matching.transfers) {
    const double both = std::max(of_action(measured, transfer.send).start, of_action(measured, transfer.recv).start);
    of_action(times.seconds, transfer.send) = std::max(0.0, end_of(transfer, program, measured) - both);
    of_action(times.seconds, transfer.recv) = 0;
  }
  for (const Meeting& meeting : matching.meetings) {
    double begin = 0, end = 0;
    for (const ActionRef& ref : meeting.actions) {
      begin = std::max(begin, of_action(measured, ref).start);
      end = std::max(end, of_action(measured, ref).end);
    }
    for (const ActionRef& ref : meeting.actions) of_action(times.seconds, ref) = std::max(0.0, end - begin);
  }
  times.source = "measured";
  return times;
}

ActionTimes typical_times(const Program& program, const std::vector<ActionTimes>& steps) {
  std::map<std::pair<int, Action>, std::vector<double>> found;  // of every rank
  for (const ActionTimes& step : steps)
    for (int rank = 0; rank < program.world_size(); ++rank)
      for (int i = 0; i < static_cast<int>(program.list(rank).size()); ++i)
        found[{rank, without_microbatch(program.list(rank)[static_cast<size_t>(i)])}].push_back(of_action(step.seconds, {rank, i}));
  for (auto& [action, seconds] : found) seconds = {median(std::move(seconds))};
  ActionTimes times = times_of(program, [&](const ActionRef& ref, const Action& action) { return found.at({ref.rank, without_microbatch(action)}).front(); });
  times.source = cat("medians over ", steps.size(), steps.size() == 1 ? " step" : " steps");
  return times;
}

}  // namespace lockstep::plan
