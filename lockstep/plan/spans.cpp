#include "lockstep/plan/spans.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::plan {
namespace {

using program::Action;

class Matcher {
 public:
  Matcher(const program::Program& program, const program::Layout& layout) : program_(program), layout_(layout) {}

  Matching run() {
    for (int rank = 0; rank < program_.world_size(); ++rank) {
      const std::vector<Action>& actions = program_.list(rank);
      result_.transfer_of.emplace_back(actions.size(), -1);
      result_.meeting_of.emplace_back(actions.size(), -1);
      known_.clear();
      called_.clear();
      program::EffectTable effects(layout_, program_.buckets, rank);
      program::Pending<int> coming;  // transfers
      for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
        const Action& action = actions[static_cast<size_t>(i)];
        const program::Effects& of = effects.of(action);
        if (program::computes(action.kind)) {
          for (const int id : coming.of(of, action)) result_.transfers[static_cast<size_t>(id)].user = {rank, i};
          coming.join(of, action);
        }
        if (program::words_of(action.kind).receives) coming.start(of, action, transfer({rank, i}, action));
        if (program::words_of(action.kind).sends) transfer({rank, i}, action);
        if (of.collective) meeting({rank, i}, action);
      }
    }
    for (const Transfer& transfer : result_.transfers)
      LOCKSTEP_CHECK(transfer.send.rank >= 0 && transfer.recv.rank >= 0, "a transfer of rank ",
                     std::max(transfer.send.rank, transfer.recv.rank), " has one end only");
    for (const auto& [group, ids] : meetings_)
      for (const int id : ids) {
        const std::vector<ActionRef>& actions = result_.meetings[static_cast<size_t>(id)].actions;
        LOCKSTEP_CHECK_EQ(actions.size(), group.second.size(), "ranks that come to action ", actions.front().index, " of rank ", actions.front().rank);
      }
    return std::move(result_);
  }

 private:
  using Group = std::pair<program::Channel, std::vector<int>>;  // ranks, ascending
  using Meetings = std::pair<const Group, std::vector<int>>;    // a group, and its own in their order

  int transfer(const ActionRef& ref, const Action& action) {
    const auto [send, forward, neighbour] = program::transfer_of(action);
    const int peer = layout_.rank_at(ref.rank, neighbour);
    auto& [ids, so_far] = channels_[{send ? ref.rank : peer, send ? peer : ref.rank, forward}];
    const size_t nth = so_far[send]++;
    if (nth == ids.size()) {
      ids.push_back(static_cast<int>(result_.transfers.size()));
      result_.transfers.emplace_back();
    }
    Transfer& found = result_.transfers[static_cast<size_t>(ids[nth])];
    (send ? found.send : found.recv) = ref;
    return of_action(result_.transfer_of, ref) = ids[nth];
  }

  void meeting(const ActionRef& ref, const Action& action) {
    Meetings* const meetings = meetings_of(ref.rank, action);
    if (meetings == nullptr) return;
    std::vector<int>& ids = meetings->second;
    const size_t nth = called_[meetings]++;
    if (nth == ids.size()) {
      ids.push_back(static_cast<int>(result_.meetings.size()));
      result_.meetings.push_back({.group = ids.front()});
    }
    result_.meetings[static_cast<size_t>(ids[nth])].actions.push_back(ref);
    of_action(result_.meeting_of, ref) = ids[nth];
  }

  // Planning a call looks at tables of parameters: once for calls that differ in the microbatch alone.
  Meetings* meetings_of(int rank, const Action& action) {
    const auto [known, fresh] = known_.try_emplace(program::without_microbatch(action), nullptr);
    if (!fresh) return known->second;
    const std::vector<program::CallOfRank> calls = program::calls_of_rank(layout_, program_, rank, action);
    if (calls.empty()) return nullptr;
    Group group{calls.back().group.channel, calls.back().call.group};
    std::sort(group.second.begin(), group.second.end());
    return known->second = &*meetings_.try_emplace(std::move(group)).first;
  }

  const program::Program& program_;
  const program::Layout& layout_;
  Matching result_;
  std::map<std::tuple<int, int, bool>, std::pair<std::vector<int>, std::array<size_t, 2>>> channels_;  // transfers; RECVs, SENDs so far
  std::map<Group, std::vector<int>> meetings_;
  std::map<Action, Meetings*> known_;                      // of the rank at hand; null: none
  std::map<const Meetings*, size_t> called_;               // the same: calls so far
};

double missing(double part, double whole) { return whole > 0 ? 1 - part / whole : 0; }

}  // namespace

double Utilisation::mean_busy() const {
  return busy.empty() ? 0 : std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
}
double Utilisation::bubble() const { return missing(mean_busy(), longest_window); }
double Utilisation::idle(int rank) const { return missing(busy.at(static_cast<size_t>(rank)), pipeline_seconds); }
double Utilisation::idle() const { return missing(mean_busy(), pipeline_seconds); }

Utilisation utilisation(const program::Program& program, const Spans& spans) {
  Utilisation result;
  for (size_t rank = 0; rank < spans.size(); ++rank) {
    double& busy = result.busy.emplace_back(0);
    double first = -1, last = 0;
    for (size_t i = 0; i < spans[rank].size(); ++i) {
      const Span& span = spans[rank][i];
      result.step_seconds = std::max(result.step_seconds, span.end);
      if (!program::computes(program.list(static_cast<int>(rank))[i].kind)) continue;
      busy += span.seconds();
      if (first < 0) first = span.start;
      last = std::max(last, span.end);
    }
    result.pipeline_seconds = std::max(result.pipeline_seconds, last);
    result.longest_window = std::max(result.longest_window, last - std::max(first, 0.0));
  }
  return result;
}

double median(std::vector<double> values) {
  LOCKSTEP_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

Matching match(const program::Program& program, const program::Layout& layout) { return Matcher(program, layout).run(); }

ActionRef computed_up_to(const program::Program& program, ActionRef ref) {
  const std::vector<Action>& actions = program.list(ref.rank);
  while (ref.index >= 0 && !program::computes(actions[static_cast<size_t>(ref.index)].kind)) --ref.index;
  return ref.index >= 0 ? ref : ActionRef{};
}

}  // namespace lockstep::plan
