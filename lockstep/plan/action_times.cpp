#include "lockstep/plan/action_times.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cost_file.h"
#include "lockstep/plan/matching.h"
#include "lockstep/plan/step_cost.h"
#include "lockstep/program/pending.h"

namespace lockstep::plan {
namespace {

using program::Action;
using program::ActionKind;
using program::Layout;
using program::Program;

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
  const auto work = [&](const WorkCost& cost) { return action.layer >= 0 ? cost.of(layout, action.layer) : cost.of_stage(layout, action.stage); };
  double sum = (price.norm ? costs.norm : 0) + costs.step * price.updated / price.parameters;
  switch (price.work) {
    case program::Work::kForward:
      sum += work(costs.forward);
      break;
    case program::Work::kInput:
      sum += work(costs.input);
      break;
    case program::Work::kWeight:
      sum += work(costs.weight);
      break;
    case program::Work::kInputAndWeight:
      sum += work(costs.input) + work(costs.weight);
      break;
    case program::Work::kAgain:
      sum += work(costs.recompute);
      break;
    case program::Work::kNone:
      break;
  }
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
    ends.push_back(measured[static_cast<size_t>(transfer.recv.rank)][static_cast<size_t>(transfer.recv.index)].end);
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
    const double whole = program::work_of(action.kind) == program::Work::kInputAndWeight ? 2 : 1;
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
  const auto span = [&](const ActionRef& ref) {
    return measured[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
  };
  const auto set = [&](const ActionRef& ref, double value) {
    times.seconds[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)] = value;
  };
  const Matching matching = match(program, layout);
  const std::vector<double> arrivals = transfer_ends(program, layout, measured, matching);
  for (size_t i = 0; i < matching.transfers.size(); ++i) {
    const Transfer& transfer = matching.transfers[i];
    const Span send = span(transfer.send), recv = span(transfer.recv);
    set(transfer.send, std::max(0.0, arrivals[i] - std::max(send.start, recv.start)));
    set(transfer.recv, 0);
  }
  for (const Meeting& meeting : matching.meetings) {
    double begin = 0, end = 0;
    for (const ActionRef& ref : meeting.actions) {
      begin = std::max(begin, span(ref).start);
      end = std::max(end, span(ref).end);
    }
    for (const ActionRef& ref : meeting.actions) set(ref, std::max(0.0, end - begin));
  }
  times.source = "measured";
  return times;
}

ActionTimes typical_times(const Program& program, const std::vector<ActionTimes>& steps) {
  const auto key = [](const Action& action) {
    return std::tuple(action.kind, action.stage, action.layer, action.bucket, action.unit, static_cast<int>(action.moved));
  };
  ActionTimes times;
  for (int rank = 0; rank < program.world_size(); ++rank) {
    const std::vector<Action>& actions = program.list(rank);
    std::map<std::tuple<ActionKind, int, int, int, int, int>, std::vector<double>> found;
    for (const ActionTimes& step : steps)
      for (size_t i = 0; i < actions.size(); ++i) found[key(actions[i])].push_back(step.seconds.at(static_cast<size_t>(rank)).at(i));
    std::map<std::tuple<ActionKind, int, int, int, int, int>, double> typical;
    for (auto& [what, seconds] : found) typical[what] = median(std::move(seconds));
    std::vector<double>& row = times.seconds.emplace_back();
    for (const Action& action : actions) row.push_back(typical.at(key(action)));
  }
  times.source = cat("medians over ", steps.size(), steps.size() == 1 ? " step" : " steps");
  return times;
}

}  // namespace lockstep::plan
