// How long each action takes.
#include <algorithm>
#include <map>
#include <optional>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cost_file.h"
#include "lockstep/plan/simulate.h"
#include "lockstep/plan/step_cost.h"
#include "lockstep/program/pending.h"

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
    for (const Action& action : program.list(rank)) row.push_back(seconds(rank, action));
  }
  return times;
}

// Of what an action asks for (step_cost.h).
double seconds_of(const Action& action, const Price& price, const Layout& layout, const StepCosts& costs) {
  const auto work = [&](const WorkCost& cost) { return cost.of(layout, action.layer); };
  const auto is = [&](Work kind) { return price.work == kind; };
  double sum = (price.norm ? costs.norm : 0) + costs.step * price.updated / price.parameters;
  if (is(Work::kForward)) sum += work(costs.forward);
  if (is(Work::kInput) || is(Work::kInputAndWeight)) sum += work(costs.input);
  if (is(Work::kWeight) || is(Work::kInputAndWeight)) sum += work(costs.weight);
  if (is(Work::kAgain)) sum += work(costs.recompute);
  double calls = 0;
  for (const double bytes : price.calls) calls += costs.collective.seconds(bytes);
  for (const double bytes : price.moves) sum += costs.copy.seconds(bytes);
  if (price.handed_over > 0) sum += costs.transfer.seconds(price.handed_over);
  return sum + calls;
}

// When each transfer was over: for who waited, once that woke up.
std::vector<double> transfer_ends(const Program& program, const Layout& layout, const Spans& measured, const Matching& matching) {
  std::vector<double> ends;
  for (const Transfer& transfer : matching.transfers)
    ends.push_back(of_action(measured, transfer.recv).end);
  for (size_t rank = 0; rank < measured.size(); ++rank) {
    program::EffectTable effects(layout, program.buckets, static_cast<int>(rank));
    program::Pending<size_t> pending;  // RECVs, by their positions
    double clock = 0;  // end of what was computed before
    for (size_t i = 0; i < measured[rank].size(); ++i) {
      const Action& action = program.list(static_cast<int>(rank))[i];
      const int transfer = matching.transfer_of[rank][i];
      if (transfer >= 0 && matching.transfers[static_cast<size_t>(transfer)].recv.rank == static_cast<int>(rank))
        pending.start(effects.of(action), action, i);
      if (!program::computes(action.kind)) continue;
      for (const size_t recv : pending.of(effects.of(action), action)) {
        double& end = ends[static_cast<size_t>(matching.transfer_of[rank][recv])];
        if (end > clock) end = std::max(end, measured[rank][i].start);
      }
      pending.join(effects.of(action), action);
      clock = measured[rank][i].end;
    }
  }
  return ends;
}

}  // namespace

ActionTimes unit_times(const Program& program, const Layout& layout) {
  std::vector<double> share(static_cast<size_t>(layout.num_layers()), 1);
  for (int layer = 0; layer < layout.num_layers(); ++layer) {
    const auto [begin, end] = layout.stage_layers(layout.pipeline.stage_of(layer));
    share[static_cast<size_t>(layer)] = 1.0 / (end - begin);
  }
  ActionTimes times = times_of(program, [&](int, const Action& action) {
    if (!program::computes(action.kind)) return 0.0;
    const double whole = program::work_of(action.kind) == Work::kInputAndWeight ? 2 : 1;
    return action.layer < 0 ? whole : whole * share[static_cast<size_t>(action.layer)];
  });
  times.in_units = true;
  times.source = "equal stages";
  return times;
}

ActionTimes cost_times(const Program& program, const Layout& layout, const StepCosts& costs) {
  std::optional<Prices> prices;
  int priced = -1;
  ActionTimes times = times_of(program, [&](int rank, const Action& action) {
    if (rank != priced) prices.emplace(layout, program, rank);
    priced = rank;
    return seconds_of(action, prices->of(action), layout, costs);
  });
  times.source = costs.source;
  return times;
}

ActionTimes measured_times(const Program& program, const Layout& layout, const Spans& measured) {
  LOCKSTEP_CHECK_EQ(static_cast<int>(measured.size()), program.world_size());
  ActionTimes times;
  for (const std::vector<Span>& row : measured) {
    std::vector<double>& seconds = times.seconds.emplace_back();
    for (const Span& span : row) seconds.push_back(span.seconds());
  }
  const Matching matching = match(program, layout);
  const std::vector<double> arrivals = transfer_ends(program, layout, measured, matching);
  for (size_t i = 0; i < matching.transfers.size(); ++i) {
    const Transfer& transfer = matching.transfers[i];
    const double both = std::max(of_action(measured, transfer.send).start, of_action(measured, transfer.recv).start);
    of_action(times.seconds, transfer.send) = std::max(0.0, arrivals[i] - both);
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
  ActionTimes times;
  for (int rank = 0; rank < program.world_size(); ++rank) {
    const std::vector<Action>& actions = program.list(rank);
    std::map<Action, std::vector<double>> found;
    for (const ActionTimes& step : steps)
      for (size_t i = 0; i < actions.size(); ++i)
        found[without_microbatch(actions[i])].push_back(step.seconds.at(static_cast<size_t>(rank)).at(i));
    std::map<Action, double> typical;
    for (auto& [action, seconds] : found) typical[action] = median(std::move(seconds));
    std::vector<double>& row = times.seconds.emplace_back();
    for (const Action& action : actions) row.push_back(typical.at(without_microbatch(action)));
  }
  times.source = cat("medians over ", steps.size(), steps.size() == 1 ? " step" : " steps");
  return times;
}

}  // namespace lockstep::plan
