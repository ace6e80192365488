#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/passes/pipeline_walk.h"

namespace lockstep::program {
namespace {

// The stage that receives, and the microbatch.
using Message = std::pair<int, int>;
// From one coordinate on pp to another, forward.
using Channel = std::tuple<int, int, bool>;

// What goes through every channel of a pipeline, in the order in which its sender makes it.
class Channels {
 public:
  // lists: by coordinate on pp.
  Channels(const Layout& layout, const std::vector<const std::vector<Action>*>& lists) : pipeline_(layout.pipeline) {
    for (const std::vector<Action>* list : lists)
      for (const Action& action : *list) {
        const bool forward = action.kind == ActionKind::kForward;
        if (!forward && !goes_back(action.kind)) continue;
        const int stage = pipeline_.stage_of(action.layer);
        const auto [begin, end] = layout.stage_layers(stage);
        if (action.layer == (forward ? end - 1 : begin)) add(stage, forward ? stage + 1 : stage - 1, action.microbatch);
      }
  }

  bool elsewhere(int stage, int other) const {
    return other >= 0 && other < pipeline_.stages() && pipeline_.rank_of(stage) != pipeline_.rank_of(other);
  }
  // Between two neighbouring stages.
  Channel channel(int from, int to) const { return {pipeline_.rank_of(from), pipeline_.rank_of(to), to > from}; }
  const std::vector<Message>& of(const Channel& channel) const { return messages_.at(channel); }

 private:
  void add(int from, int to, int microbatch) {
    if (elsewhere(from, to)) messages_[channel(from, to)].emplace_back(to, microbatch);
  }

  const Pipeline& pipeline_;
  std::map<Channel, std::vector<Message>> messages_;
};

// One rank's list with its transfers.
class Transfers {
 public:
  Transfers(const Layout& layout, const Channels& channels, const std::vector<Action>& actions)
      : layout_(layout), channels_(channels) {
    for (const Action& action : actions) add(action);
    flush();
  }
  std::vector<Action> take() { return std::move(merged_); }

 private:
  // `waiting_`: one stretch of a stage for one microbatch, so that what it needs can be asked for ahead of it.
  void add(const Action& action) {
    const int stage = layout_.pipeline.stage_of(action.layer);
    const bool forward = action.kind == ActionKind::kForward;
    const auto [begin, end] = layout_.stage_layers(stage);
    const bool first = action.layer == (forward ? begin : end - 1);
    const bool computes_again = work_of(action.kind) == Work::kAgain;
    const bool recomputed = !waiting_.empty() && work_of(waiting_.back().kind) == Work::kAgain;
    if (first && !recomputed) begin_stretch(action, stage);
    waiting_.push_back(action);
    const bool last = action.layer == (forward ? end - 1 : begin);
    if (!last || computes_again || action.kind == ActionKind::kBackwardWeight) return;
    const int next = forward ? stage + 1 : stage - 1;
    if (channels_.elsewhere(stage, next))
      waiting_.push_back({.kind = forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
                          .stage = stage,
                          .microbatch = action.microbatch});
  }

  void begin_stretch(const Action& action, int stage) {
    const int source = action.kind == ActionKind::kForward ? stage - 1 : stage + 1;
    if (!layout_.overlap) flush();
    // In front of the stretch before this one: it arrives while that one computes.
    if (action.kind != ActionKind::kBackwardWeight && channels_.elsewhere(stage, source))
      receive(channels_.channel(source, stage), {stage, action.microbatch});
    if (layout_.overlap) flush();
  }

  // And what the sender makes before it and nobody has asked for: a channel keeps its order.
  void receive(const Channel& channel, const Message& wanted) {
    const std::vector<Message>& messages = channels_.of(channel);
    auto& [next, early] = received_[channel];
    if (early.erase(wanted) > 0) return;
    for (bool found = false; !found; ++next) {
      LOCKSTEP_CHECK(next < messages.size(), "nobody sends stage ", wanted.first, " microbatch ", wanted.second);
      const auto [stage, microbatch] = messages[next];
      merged_.push_back({.kind = std::get<bool>(channel) ? ActionKind::kRecvForward : ActionKind::kRecvBackward,
                         .stage = stage,
                         .microbatch = microbatch});
      found = messages[next] == wanted;
      if (!found) early.insert(messages[next]);
    }
  }
  void flush() {
    merged_.insert(merged_.end(), waiting_.begin(), waiting_.end());
    waiting_.clear();
  }

  struct Received {
    size_t next = 0;  // of the channel's messages
    std::set<Message> early{};
  };
  const Layout& layout_;
  const Channels& channels_;
  std::map<Channel, Received> received_;
  std::vector<Action> merged_, waiting_;
};

// The first rank of every coordinate on pp, which varies slowest.
std::vector<const std::vector<Action>*> one_pipeline(const Program& program, const Layout& layout) {
  std::vector<const std::vector<Action>*> lists;
  for (int rank = 0; rank < program.world_size(); rank += layout.pipelines()) lists.push_back(&program.list(rank));
  return lists;
}

}  // namespace

Program transfer_activations(Program program, const Layout& layout) {
  if (layout.pipeline.ranks == 1) return program;
  const Channels channels(layout, one_pipeline(program, layout));
  for (std::vector<Action>& actions : program.lists) actions = Transfers(layout, channels, actions).take();
  // Of the generated schedules the verifier proves that one is enough.
  if (layout.pipeline.kind == ScheduleKind::kFile)
    program.channel_depth = unhindered_channel_depth({.pipeline = layout.pipeline,
                                                      .microbatches = static_cast<int>(layout.num_microbatches()),
                                                      .layers = true,
                                                      .transfers = true,
                                                      .lists = one_pipeline(program, layout)});
  return program;
}

}  // namespace lockstep::program
