#include "lockstep/plan/action_times.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cost_file.h"
#include "lockstep/plan/matching.h"
#include "lockstep/program/pending.h"
#include "lockstep/program/planned_calls.h"
#include "lockstep/program/predict/memory.h"

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

class Costs {
 public:
  Costs(const Program& program, const Layout& layout, const StepCosts& costs)
      : program_(program), layout_(layout), costs_(costs) {}

  double of(int rank, const Action& action) {
    if (rank != rank_) known_.clear();
    rank_ = rank;
    // Microbatches cost the same.
    const auto [entry, fresh] = known_.try_emplace(
        std::tuple(action.kind, action.stage, action.layer, action.bucket, action.unit, static_cast<int>(action.moved)), 0.0);
    if (fresh) entry->second = found(action);
    return entry->second;
  }

 private:
  double found(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kForward:
        return work(action, costs_.forward) + calls(action);
      case ActionKind::kBackward:
        return work(action, costs_.input) + work(action, costs_.weight) + calls(action);
      case ActionKind::kBackwardInput:
        return work(action, costs_.input) + calls(action);
      case ActionKind::kBackwardWeight:
        return work(action, costs_.weight) + calls(action);
      case ActionKind::kRecompute:
        return work(action, costs_.recompute) + calls(action);
      case ActionKind::kSendForward:
        return costs_.transfer.seconds(output_bytes(layout_.stage_layers(action.stage).end - 1));
      case ActionKind::kSendBackward:
        return costs_.transfer.seconds(output_bytes(layout_.stage_layers(action.stage).begin - 1));
      case ActionKind::kFetch:
      case ActionKind::kEvict:
        return copy(action);
      case ActionKind::kNorm:
        return costs_.norm + calls(action);
      case ActionKind::kStep:
        return step(action);
      default:
        return calls(action);
    }
  }

  double work(const Action& action, const WorkCost& cost) const {
    return action.layer >= 0 ? cost.of(layout_, action.layer) : cost.of_stage(layout_, action.stage);
  }
  double output_bytes(int layer) const {
    return static_cast<double>(program::layer_costs(layout_, rank_).at(static_cast<size_t>(layer)).output);
  }
  double calls(const Action& action) const {
    double sum = 0;
    for (const program::PlannedCall& call : program::planned_calls(layout_, program_, rank_, action)) {
      int64_t most = 0;  // the rank that sends most keeps the others waiting
      for (int i = 0; i < static_cast<int>(call.call.group.size()); ++i) {
        int64_t sent = 0;
        for (const auto& [peer, bytes] : program::predicted_sends(call.call, i)) sent += bytes;
        most = std::max(most, sent);
      }
      sum += costs_.collective.seconds(static_cast<double>(most));
    }
    return sum;
  }
  // As program/predict/moves.h; what is dropped moves nothing.
  double copy(const Action& action) const {
    if (action.moved == program::Moved::kActivation)
      return costs_.copy.seconds(
          static_cast<double>(program::layer_costs(layout_, rank_).at(static_cast<size_t>(action.layer)).kept));
    if (action.moved == program::Moved::kOptimizer) return costs_.copy.seconds(static_cast<double>(layout_.optimizer->update_bytes()) * shard(action.unit));
    if (action.kind == ActionKind::kEvict) return 0;
    return costs_.copy.seconds(static_cast<double>(layout_.element_size()) * shard(action.unit));
  }
  // Elements of a unit, or with -1 of all of them, over the shards.
  double shard(int layer) const {
    double sum = 0;
    for (const arch::FlatUnit& unit : layout_.flat_layout(rank_).units)
      if (layer < 0 || unit.layer == layer) sum += static_cast<double>(unit.numel());
    return sum / layout_.shards();
  }
  // Of a unit: by its share of the parameters.
  double step(const Action& action) const {
    return action.unit < 0 ? costs_.step : costs_.step * shard(action.unit) / shard(-1);
  }

  const Program& program_;
  const Layout& layout_;
  const StepCosts& costs_;
  int rank_ = -1;
  std::map<std::tuple<ActionKind, int, int, int, int, int>, double> known_;  // of the rank at hand
};

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
    const double whole = action.kind == ActionKind::kBackward ? 2 : 1;
    return action.layer < 0 ? whole : whole * share[static_cast<size_t>(action.layer)];
  });
  times.in_units = true;
  times.source = "equal stages";
  return times;
}

ActionTimes cost_times(const Program& program, const Layout& layout, const StepCosts& costs) {
  Costs known(program, layout, costs);
  ActionTimes times = times_of(program, [&](int rank, const Action& action) { return known.of(rank, action); });
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
