#include "lockstep/plan/matching.h"

#include <algorithm>
#include <map>
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
    const int ranks = program_.world_size();
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<Action>& actions = program_.list(rank);
      result_.transfer_of.emplace_back(actions.size(), -1);
      result_.meeting_of.emplace_back(actions.size(), -1);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      known_.clear();
      called_.clear();
      program::EffectTable effects(layout_, program_.buckets, rank);
      const std::vector<Action>& actions = program_.list(rank);
      for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
        const Action& action = actions[static_cast<size_t>(i)];
        if (program::computes(action.kind)) continue;
        const program::Effects& of = effects.of(action);
        if (of.lane == program::Lane::kChannel) transfer({rank, i}, action);
        if (of.collective) meeting({rank, i}, action);
      }
    }
    check();
    return std::move(result_);
  }

 private:
  using Meetings = std::pair<const std::vector<int>, std::vector<int>>;  // a group, and its own in their order

  void transfer(const ActionRef& ref, const Action& action) {
    const auto [send, forward, neighbour] = program::transfer_of(action);
    const int peer = layout_.rank_at(ref.rank, neighbour);
    const std::pair<int, int> ends = send ? std::pair(ref.rank, peer) : std::pair(peer, ref.rank);
    auto& [ids, sent, received] = channels_[{ends.first, ends.second, forward}];
    const size_t nth = send ? sent++ : received++;
    if (nth == ids.size()) {
      ids.push_back(static_cast<int>(result_.transfers.size()));
      result_.transfers.emplace_back();
    }
    Transfer& found = result_.transfers[static_cast<size_t>(ids[nth])];
    (send ? found.send : found.recv) = ref;
    of_action(result_.transfer_of, ref) = ids[nth];
  }

  void meeting(const ActionRef& ref, const Action& action) {
    Meetings* const meetings = meetings_of(ref.rank, action);
    if (meetings == nullptr) return;
    auto& [group, ids] = *meetings;
    const size_t nth = called_[meetings]++;
    if (nth == ids.size()) {
      ids.push_back(static_cast<int>(result_.meetings.size()));
      result_.meetings.push_back({.group = group, .actions = {}});
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
    std::vector<int> group = calls.back().call.group;
    std::sort(group.begin(), group.end());
    return known->second = &*meetings_.try_emplace(std::move(group)).first;
  }

  void check() const {
    for (const Transfer& transfer : result_.transfers)
      LOCKSTEP_CHECK(transfer.send.rank >= 0 && transfer.recv.rank >= 0, "a transfer of rank ",
                     std::max(transfer.send.rank, transfer.recv.rank), " has one end only");
    for (const Meeting& meeting : result_.meetings)
      LOCKSTEP_CHECK_EQ(meeting.actions.size(), meeting.group.size(), "ranks that come to action ",
                        meeting.actions.front().index, " of rank ", meeting.actions.front().rank);
  }

  const program::Program& program_;
  const program::Layout& layout_;
  Matching result_;
  struct Channel {
    std::vector<int> ids;
    size_t sent = 0, received = 0;
  };
  std::map<std::tuple<int, int, bool>, Channel> channels_;
  std::map<std::vector<int>, std::vector<int>> meetings_;  // by group, ascending
  std::map<Action, Meetings*> known_;                      // of the rank at hand; null: none
  std::map<const Meetings*, size_t> called_;               // the same: calls so far
};

}  // namespace

Matching match(const program::Program& program, const program::Layout& layout) { return Matcher(program, layout).run(); }

}  // namespace lockstep::plan
