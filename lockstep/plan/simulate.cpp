#include "lockstep/plan/simulate.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/passes/post_validation.h"

namespace lockstep::plan {
namespace {

using program::Action;
using program::ActionKind;
using program::Effects;
using program::Join;
using program::Lane;

// When something can begin, and what it would have waited for last.
struct Moment {
  double time = 0;
  ActionRef cause{};
};

// One rank on its way through its list.
struct Walker {
  size_t next = 0;
  Moment clock{};        // what it computes is done up to here
  Moment copies{};       // the lane of FETCH and EVICT
  bool arrived = false;  // at the collective that it waits for
  program::Pending<ActionRef> pending{};
};

// What ranks wait for that another one does: a SEND, the last of a collective, a stage.
struct Gate {
  ActionRef by{};  // who has opened it
  std::vector<int> waiting{};
  size_t arrived = 0;  // ranks of a collective
  Moment begin{};      // for all of them
};

class Simulator {
 public:
  Simulator(const program::Program& program, const program::Layout& layout, const ActionTimes& times)
      : program_(program), layout_(layout), times_(times), matching_(match(program, layout)) {
    for (int rank = 0; rank < program.world_size(); ++rank) {
      result_.spans.emplace_back(actions(rank).size());
      causes_.emplace_back(actions(rank).size());
      ready_.push_back(rank);
    }
    walkers_.resize(ready_.size());
    for (int coordinate = 0; coordinate < layout.pipeline.ranks; ++coordinate)
      effects_.emplace_back(layout, program.buckets, coordinate * layout.pipelines());
    sent_.resize(matching_.transfers.size());
    calls_.resize(matching_.meetings.size());
    handed_.resize(static_cast<size_t>(2 * layout.pipeline.stages() * layout.num_microbatches() * layout.pipelines()));
  }

  Simulation run() {
    while (!ready_.empty()) {
      const int rank = ready_.back();
      ready_.pop_back();
      Walker& walker = walkers_[static_cast<size_t>(rank)];
      while (walker.next < actions(rank).size() && step(rank, walker)) ++walker.next;
    }
    for (size_t rank = 0; rank < walkers_.size(); ++rank) {
      const std::vector<Action>& list = actions(static_cast<int>(rank));
      LOCKSTEP_CHECK(walkers_[rank].next == list.size(), "rank ", rank, " waits for ever at ",
                     program::action_text(list[walkers_[rank].next], program_.buckets, layout_.num_layers()));
    }
    result_.use = utilisation(program_, result_.spans);
    result_.critical_path = critical_path();
    return std::move(result_);
  }

 private:
  const std::vector<Action>& actions(int rank) const { return program_.list(rank); }
  Span& span(const ActionRef& ref) { return of_action(result_.spans, ref); }
  double seconds(const ActionRef& ref) const { return of_action(times_.seconds, ref); }
  Moment end_of(const ActionRef& ref) { return {span(ref).end, ref}; }
  static void after(Moment& moment, const Moment& other) {
    if (other.time > moment.time) moment = other;
  }
  // Notes when it runs; its end.
  Moment record(const ActionRef& ref, const Moment& begin, double takes) {
    span(ref) = {begin.time, begin.time + takes};
    of_action(causes_, ref) = begin.cause;
    return end_of(ref);
  }

  // False: the rank goes back into ready_ once somebody opens the gate.
  static bool passes(Gate& gate, const ActionRef& ref) {
    if (gate.by.rank < 0) gate.waiting.push_back(ref.rank);
    return gate.by.rank >= 0;
  }
  void open(Gate& gate, const ActionRef& by) {
    gate.by = by;
    ready_.insert(ready_.end(), gate.waiting.begin(), gate.waiting.end());
  }

  // False: it waits for another rank.
  bool step(int rank, Walker& walker) {
    const ActionRef ref{rank, static_cast<int>(walker.next)};
    const Action& action = actions(rank)[walker.next];
    if (program::words_of(action.kind).receives) {
      span(ref) = {walker.clock.time, walker.clock.time};
      walker.pending.start(effects(ref), action, ref);
      return true;
    }
    if (program::words_of(action.kind).sends) return send(ref, action, walker);
    return of_action(matching_.meeting_of, ref) >= 0 ? collective(ref, action, walker) : local(ref, action, walker);
  }
  const Effects& effects(const ActionRef& ref) {
    return effects_[static_cast<size_t>(layout_.pipeline_rank(ref.rank))].of(actions(ref.rank)[static_cast<size_t>(ref.index)]);
  }

  bool local(const ActionRef& ref, const Action& action, Walker& walker) {
    const bool moves = effects(ref).lane == Lane::kCopies;
    Moment& lane = moves ? walker.copies : walker.clock;
    Moment begin = walker.clock;
    if (!wait(ref, action, walker, begin)) return false;
    after(begin, lane);
    lane = record(ref, begin, seconds(ref));
    if (moves)
      walker.pending.start(effects(ref), action, ref);
    else
      walker.pending.join(effects(ref), action);
    if (action.layer < 0 && action.stage >= 0 && action.kind != ActionKind::kBackwardWeight) open(handed(ref, action, action.stage), ref);
    return true;
  }

  // Moves `begin` behind all that the action uses. False: something of it is not there yet.
  bool wait(const ActionRef& ref, const Action& action, Walker& walker, Moment& begin) {
    for (const ActionRef& used : walker.pending.of(effects(ref), action)) {
      const int transfer = of_action(matching_.transfer_of, used), meeting = of_action(matching_.meeting_of, used);
      if (transfer >= 0 && !passes(sent(transfer), ref)) return false;
      if (meeting >= 0 && !passes(call(meeting), ref)) return false;
      const ActionRef& cause = transfer >= 0 ? sent(transfer).by : used;
      if (cause != used) arrive(used, cause);
      after(begin, {span(used).end, cause});
    }
    return action.layer >= 0 || action.stage < 0 || wait_stage(ref, action, begin);
  }

  Gate& sent(int transfer) { return sent_[static_cast<size_t>(transfer)]; }

  bool send(const ActionRef& ref, const Action& action, Walker& walker) {
    const int transfer = of_action(matching_.transfer_of, ref);
    const int receiver = matching_.transfers[static_cast<size_t>(transfer)].recv.rank;
    std::deque<Moment>& channel = channels_[{ref.rank, receiver, action.kind}];
    if (static_cast<int>(channel.size()) == program_.channel_depth) {
      after(walker.clock, channel.front());
      channel.pop_front();
    }
    Moment begin = walker.clock;
    if (!channel.empty()) after(begin, channel.back());
    channel.push_back(record(ref, begin, seconds(ref)));
    walker.pending.start(effects(ref), action, ref);
    open(sent(transfer), ref);
    return true;
  }
  void arrive(const ActionRef& recv, const ActionRef& send) {
    span(recv) = {std::max(span(recv).start, span(send).start), std::max(span(recv).end, span(send).end)};
    of_action(causes_, recv) = send;
  }

  Gate& call(int meeting) { return calls_[static_cast<size_t>(meeting)]; }

  bool collective(const ActionRef& ref, const Action& action, Walker& walker) {
    const int meeting = of_action(matching_.meeting_of, ref);
    const bool waits = effects(ref).join == Join::kAtOnce, stands = waits || effects(ref).host_reads;  // until it can begin
    if (!walker.arrived) {
      Moment begin = walker.clock;
      if (!wait(ref, action, walker, begin)) return false;
      if (stands) walker.clock = begin;
      after(call(meeting).begin, begin);
      if (++call(meeting).arrived == matching_.meetings[static_cast<size_t>(meeting)].actions.size()) complete(meeting);
    }
    walker.arrived = waits && !passes(call(meeting), ref);
    if (walker.arrived) return false;
    if (waits) {
      walker.clock = end_of(ref);
      walker.pending.join(effects(ref), action);
    } else {
      walker.pending.start(effects(ref), action, ref);
    }
    return true;
  }
  void complete(int meeting) {
    const Meeting& ranks = matching_.meetings[static_cast<size_t>(meeting)];
    Moment& lane = groups_[ranks.group];
    Moment begin = call(meeting).begin;
    after(begin, lane);
    double takes = 0;
    for (const ActionRef& ref : ranks.actions) takes = std::max(takes, seconds(ref));
    for (const ActionRef& ref : ranks.actions) lane = record(ref, begin, takes);
    open(call(meeting), ranks.actions.back());
  }

  // Programs of whole stages: what F hands to the next stage, B or I to the one before.
  Gate& handed(const ActionRef& ref, const Action& action, int stage) {
    const int row = action.kind == ActionKind::kForward ? stage : layout_.pipeline.stages() + stage;
    const int64_t column = row * layout_.num_microbatches() + action.microbatch;
    return handed_.at(static_cast<size_t>(column * layout_.pipelines() + ref.rank % layout_.pipelines()));
  }
  bool wait_stage(const ActionRef& ref, const Action& action, Moment& begin) {
    const bool forward = action.kind == ActionKind::kForward;
    const int first = forward ? 0 : layout_.pipeline.stages() - 1;
    if (action.kind == ActionKind::kBackwardWeight || action.stage == first) return true;
    Gate& source = handed(ref, action, action.stage + (forward ? -1 : 1));
    if (!passes(source, ref)) return false;
    after(begin, end_of(source.by));
    return true;
  }

  std::vector<ActionRef> critical_path() {
    ActionRef last;
    for (int rank = 0; rank < static_cast<int>(result_.spans.size()); ++rank) {
      for (int i = 0; i < static_cast<int>(actions(rank).size()); ++i) {
        const ActionRef ref{rank, i};
        if (last.rank < 0 || span(ref).end >= span(last).end) last = ref;
      }
    }
    std::vector<ActionRef> path;
    for (; last.rank >= 0; last = of_action(causes_, last)) path.push_back(last);
    std::reverse(path.begin(), path.end());
    return path;
  }

  const program::Program& program_;
  const program::Layout& layout_;
  const ActionTimes& times_;
  const Matching matching_;
  std::vector<program::EffectTable> effects_;  // by coordinate on pp
  Simulation result_;
  std::vector<std::vector<ActionRef>> causes_;
  std::vector<Walker> walkers_;
  std::vector<int> ready_;
  std::vector<Gate> sent_;   // by transfer
  std::vector<Gate> calls_;  // by meeting
  std::map<int, Moment> groups_;
  std::map<std::tuple<int, int, ActionKind>, std::deque<Moment>> channels_;  // the ends of what is on its way
  std::vector<Gate> handed_;  // by direction, stage, microbatch and copy of the pipeline
};

// The lists several times, one after the other.
template <typename Item>
std::vector<std::vector<Item>> repeated(const std::vector<std::vector<Item>>& lists, int times) {
  std::vector<std::vector<Item>> all(lists.size());
  for (size_t rank = 0; rank < lists.size(); ++rank)
    for (int i = 0; i < times; ++i) all[rank].insert(all[rank].end(), lists[rank].begin(), lists[rank].end());
  return all;
}

double end_of_steps(const program::Program& program, const program::Layout& layout, const ActionTimes& times, int steps) {
  program::Program several = program;
  several.lists = repeated(program.lists, steps);
  const ActionTimes takes{.seconds = repeated(times.seconds, steps), .in_units = times.in_units};
  return Simulator(several, layout, takes).run().use.step_seconds;
}

}  // namespace

Simulation simulate(const program::Program& program, const program::Layout& layout, const ActionTimes& times) {
  Simulation simulation = Simulator(program, layout, times).run();
  simulation.period = simulation.use.step_seconds;
  if (layout.pipeline.post_validation && program::validate_position(program.list(0)) >= 0)
    simulation.period = end_of_steps(program, layout, times, 3) - end_of_steps(program, layout, times, 2);
  return simulation;
}

}  // namespace lockstep::plan
