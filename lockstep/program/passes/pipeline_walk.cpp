#include "lockstep/program/passes/pipeline_walk.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::program {
namespace {

// What one rank waits for: the output (or input gradient) of a stage, or that an earlier tensor is asked for.
struct Wait {
  bool forward = false;
  int stage = -1;
  int microbatch = -1;
  int channel = -1;  // of a SEND
};

class Walk {
 public:
  explicit Walk(const WalkInput& input)
      : in_(input), stages_(input.pipeline.stages()), next_(input.lists.size(), 0) {
    ends_.fill(std::vector<int>(static_cast<size_t>(stages_) * static_cast<size_t>(in_.microbatches), -1));
    clock_.assign(input.lists.size(), 0);
    sent_.resize(input.lists.size() * input.lists.size() * 2);
    received_ = sent_;
    for (int stage = 0; stage < stages_; ++stage) rank_of_.push_back(in_.pipeline.rank_of(stage));
    if (!in_.layers) return;
    for (int layer = 0; layer < layers(); ++layer) stage_of_.push_back(in_.pipeline.stage_of(layer));
  }

  std::vector<std::string> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t at = 0; at < next_.size(); ++at)
        for (; !ended(at) && !waits(action(at)); ++next_[at], moved = true) pass(at, action(at));
    }
    for (size_t at = 0; at < next_.size(); ++at)
      if (!ended(at)) return circle(at);
    return {};
  }

  // After run(): of each channel, those that were sent before the one at hand was asked for, and that one.
  int most_on_their_way() const {
    int most = 1;
    for (size_t channel = 0; channel < sent_.size(); ++channel)
      for (size_t i = 0; i < received_[channel].size(); ++i) {
        const auto& sent = sent_[channel];
        const auto later = std::lower_bound(sent.begin(), sent.end(), received_[channel][i]);
        most = std::max(most, static_cast<int>(later - sent.begin()) - static_cast<int>(i));
      }
    return most;
  }

 private:
  int layers() const { return in_.pipeline.first_layer.back(); }
  bool ended(size_t at) const { return next_[at] == in_.lists[at]->size(); }
  const Action& action(size_t at) const { return (*in_.lists[at])[next_[at]]; }
  size_t cell(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(in_.microbatches) + static_cast<size_t>(microbatch);
  }
  int stage(const Action& action) const {
    return in_.layers && action.layer >= 0 ? stage_of_[static_cast<size_t>(action.layer)] : action.stage;
  }
  // Whether an action on a layer is the first of its stage's F (the last of its backward), or the last (first).
  bool bottom(const Action& action, int stage) const {
    return !in_.layers || action.layer == in_.pipeline.first_layer[static_cast<size_t>(stage)];
  }
  bool top(const Action& action, int stage) const {
    return !in_.layers || action.layer == in_.pipeline.first_layer[static_cast<size_t>(stage) + 1] - 1;
  }
  static bool sends(const Action& action) { return words_of(action.kind).sends; }
  static bool receives(const Action& action) { return words_of(action.kind).receives; }
  // Of a SEND or RECV.
  int channel(const Action& action) const {
    const auto [out, forward, neighbour] = transfer_of(action);
    int from = rank_of_[static_cast<size_t>(action.stage)], to = rank_of_[static_cast<size_t>(neighbour)];
    if (!out) std::swap(from, to);
    return (from * static_cast<int>(next_.size()) + to) * 2 + (forward ? 0 : 1);
  }

  Wait needs(const Action& action) const {
    const int of = stage(action);
    if (in_.transfers && sends(action)) {
      const bool forward = transfer_of(action).forward;
      return {.forward = forward, .stage = forward ? of + 1 : of - 1, .channel = channel(action)};
    }
    if (action.kind == ActionKind::kForward && of > 0 && bottom(action, of)) return {true, of - 1, action.microbatch, -1};
    if (goes_back(action.kind) && of + 1 < stages_ && top(action, of)) return {false, of + 1, action.microbatch, -1};
    return {};
  }
  bool waits(const Action& action) const {
    const Wait wait = needs(action);
    if (wait.channel >= 0)
      return sent_[static_cast<size_t>(wait.channel)].size() >=
             received_[static_cast<size_t>(wait.channel)].size() + static_cast<size_t>(in_.channel_depth);
    return wait.stage >= 0 && ends_[wait.forward][cell(wait.stage, wait.microbatch)] < 0;
  }
  bool elsewhere(int stage, int other) const {
    return other >= 0 && other < stages_ &&
           rank_of_[static_cast<size_t>(stage)] != rank_of_[static_cast<size_t>(other)];
  }

  // The action that makes a stage's output (or input gradient) available to others.
  bool hands_over(const Action& action, bool forward) const {
    const int of = stage(action), to = forward ? of + 1 : of - 1;
    if (of < 0 || !ends_pass(action)) return false;
    if (in_.transfers && elsewhere(of, to)) return sends(action) && transfer_of(action).forward == forward;
    return forward ? action.kind == ActionKind::kForward && top(action, of) : goes_back(action.kind) && bottom(action, of);
  }
  // In units of the work of a stage, which falls to the last of its layers.
  int takes(const Action& action) const {
    const int of = stage(action);
    if (!ends_pass(action)) return 0;
    if (action.kind == ActionKind::kForward) return top(action, of) ? 1 : 0;
    if (!goes_back(action.kind) && !adds_to_weights(action.kind)) return 0;
    return !bottom(action, of) ? 0 : goes_back(action.kind) && adds_to_weights(action.kind) ? 2 : 1;
  }

  void pass(size_t at, const Action& action) {
    int& clock = clock_[at];
    if (const Wait wait = needs(action); wait.channel < 0 && wait.stage >= 0)
      clock = std::max(clock, ends_[wait.forward][cell(wait.stage, wait.microbatch)]);
    clock += takes(action);
    if (in_.transfers && (sends(action) || receives(action)))
      (sends(action) ? sent_ : received_)[static_cast<size_t>(channel(action))].push_back(clock);
    for (const bool forward : {true, false})
      if (hands_over(action, forward)) ends_[forward][cell(stage(action), action.microbatch)] = clock;
  }

  // Every rank that waits waits for one other; following them from any leads into a circle.
  std::vector<std::string> circle(size_t from) const {
    std::vector<size_t> way;
    while (std::ranges::find(way, from) == way.end()) {
      way.push_back(from);
      if (ended(from)) return {line(way[way.size() - 2])};
      from = static_cast<size_t>(rank_of_[static_cast<size_t>(needs(action(from)).stage)]);
    }
    std::vector<std::string> lines;
    for (auto at = std::ranges::find(way, from); at != way.end(); ++at) lines.push_back(line(*at));
    return lines;
  }

  // In the list of the other rank.
  bool gives(const Action& other, const Wait& wait, int& later) const {
    if (wait.channel >= 0) return receives(other) && channel(other) == wait.channel && later-- == 0;
    return hands_over(other, wait.forward) && stage(other) == wait.stage && other.microbatch == wait.microbatch;
  }

  std::string line(size_t at) const {
    const Wait wait = needs(action(at));
    const auto peer = static_cast<size_t>(rank_of_[static_cast<size_t>(wait.stage)]);
    const std::vector<Action>& list = *in_.lists[peer];
    int later = wait.channel < 0 ? 0 : static_cast<int>(received_[static_cast<size_t>(wait.channel)].size());
    const auto giver = std::ranges::find_if(list, [&](const Action& other) { return gives(other, wait, later); });
    const auto name = [&](size_t index) { return in_.ranks.empty() ? static_cast<int>(index) : in_.ranks[index]; };
    const std::string waits = cat("rank ", name(at), ": ", text(action(at)), " waits for ");
    const std::string of = peer == at ? " of itself" : cat(" of rank ", name(peer));
    if (giver == list.end()) return cat(waits, "stage ", wait.stage, " m", wait.microbatch, of, ", which does not have it");
    return cat(waits, text(*giver), of, peer == at ? "" : cat(", behind ", text(action(peer))));
  }
  std::string text(const Action& action) const { return action_text(action, {}, in_.layers ? layers() : 0); }

  const WalkInput& in_;
  const int stages_;
  std::vector<int> rank_of_, stage_of_;
  std::array<std::vector<int>, 2> ends_;  // of backward and of forward, by stage and microbatch: when it was handed over; -1: not yet
  std::vector<std::vector<int>> sent_, received_;  // by channel: when each was begun
  std::vector<int> clock_;                // of every list
  std::vector<size_t> next_;              // position in every list
};

}  // namespace

std::vector<std::string> find_deadlock(const WalkInput& input) {
  return Walk(input).run();
}

int unhindered_channel_depth(WalkInput input) {
  input.channel_depth = std::max(1, input.microbatches * input.pipeline.virtual_stages);
  Walk walk(input);
  return walk.run().empty() ? walk.most_on_their_way() : 1;
}

}  // namespace lockstep::program
