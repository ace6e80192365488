#include "lockstep/plan/time/step_walk.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/time/core_turns.h"
#include "lockstep/plan/time/rank_lane.h"
#include "lockstep/plan/time/step_boxes.h"
#include "lockstep/program/passes/post_validation.h"

namespace lockstep::plan {
namespace {

using program::Action;
using program::Join;
using program::Lane;

// From when to when something travels that does not depend on what the rank does meanwhile.
struct Trip {
  double begin = 0, end = 0;
};
struct Meeting;
// What was started and is not joined: a flight of the rank, a trip, the n-th tensor of a channel or what a meeting sends, which are trips.
struct Started {
  int flight = -1;
  Trip trip{};
  BreakdownTerm term = &Breakdown::pipeline;
  int channel = -1;
  size_t index = 0;
  Meeting* meeting = nullptr;
};

// From one coordinate on pp to another, in one direction.
struct Channel {
  std::vector<Trip> sent{};
  size_t received = 0;  // posted
  int waiting = -1;     // who stands for a tensor that nobody has sent
};

// A collective over several stages.
struct Meeting {
  double begin = 0, seconds = 0;
  int stages = 0;
  std::vector<std::pair<int, Action>> arrived{};  // who, with what
  std::vector<int> waiting{};
  bool is_whole() const { return static_cast<int>(arrived.size()) == stages; }
  Trip trip() const { return {.begin = begin, .end = begin + seconds}; }
};
using MeetingKey = std::tuple<program::ActionKind, int, int>;  // unit, which of them

struct Walker {
  size_t next = 0;
  RankLane lane{};
  bool arrived = false;  // at the meeting it stands at
  program::Pending<Started> pending{};
  double trips = 0;  // end of the last one that is of no microbatch
  int open = 0;      // meetings that it has come to and others have not
  double sends = 0;  // and of the last send
  std::map<std::pair<program::ActionKind, int>, int> meetings{};  // how many it has come to
  double first = -1, last = 0;                                    // of the step at hand
  double begun = 0;
  Breakdown before{};  // spent, when the step began
};

class Walk {
 public:
  Walk(const program::Layout& layout, const program::Program& program, const TimeOfAction& time_of, const WalkOptions& options)
      : layout_(layout), program_(program), options_(options), stages_(layout.pipeline.ranks), turns_(std::max(1, options.computing)),
        boxes_(layout, program, options.boxes) {
    walkers_.resize(static_cast<size_t>(stages_));
    channels_.resize(static_cast<size_t>(stages_) * static_cast<size_t>(stages_) * 2);
    for (int stage = 0; stage < stages_; ++stage) {
      actions_.emplace_back(layout, program, stage, list(stage), rank_of(stage), time_of);
      if (options.boxes) walker(stage).lane.on_landing([this, stage](int number, const Flight& flight) { boxes_.land(stage, number, flight); });
    }
  }

  StepWalk run() {
    walk_once();
    boxes_.stop();
    const bool validates = layout_.pipeline.post_validation && program::validate_position(list(0)) >= 0;
    const bool crosses = validates || std::ranges::any_of(walkers_, [](const Walker& walker) { return walker.lane.flies(); });
    double before = 0;
    for (int more = validates ? 2 : crosses ? 1 : 0; more > 0; --more) {
      before = end();
      walk_once();
    }
    StepWalk result{.seconds = end() - before};
    for (const Walker& walker : walkers_) result.ranks.push_back(rank_walk(walker, before, result.seconds));
    result.boxes = boxes_.take();
    return result;
  }

 private:
  int rank_of(int stage) const { return options_.pipeline + stage * layout_.pipelines(); }
  const std::vector<Action>& list(int stage) const { return program_.list(rank_of(stage)); }
  Walker& walker(int stage) { return walkers_[static_cast<size_t>(stage)]; }
  double end() const {
    double latest = 0;
    for (const Walker& walker : walkers_) latest = std::max(latest, walker.lane.clock());
    return latest;
  }

  static RankWalk rank_walk(const Walker& walker, double before, double seconds) {
    RankWalk rank{.spent = walker.lane.spent(), .first = walker.first - before, .last = walker.last - before};
    add(rank.spent, walker.before, -1);
    rank.busy = busy(rank.spent);
    // What this rank waits less than others at the end of a step it waits elsewhere: all steps take the same.
    rank.spent.bubble += seconds - (walker.lane.clock() - walker.begun);
    return rank;
  }

  // All lists once.
  void walk_once() {
    for (int stage = 0; stage < stages_; ++stage) {
      Walker& at = walker(stage);
      at.next = 0;
      at.first = -1;
      at.begun = at.lane.clock();
      at.before = at.lane.spent();
      ready_.push_back(stage);
    }
    while (!ready_.empty()) shares_cores() ? walk_earliest() : walk_on();
    for (int stage = 0; stage < stages_; ++stage) {
      const std::vector<Action>& actions = list(stage);
      LOCKSTEP_CHECK(walker(stage).next == actions.size(), "rank ", rank_of(stage), " waits for ever at ",
                     program::action_text(actions[walker(stage).next], program_.buckets, layout_.num_layers()));
    }
  }

  bool shares_cores() const { return options_.computing > 0 && options_.computing < stages_; }

  // One rank, as far as it comes.
  void walk_on() {
    const int stage = ready_.back();
    ready_.pop_back();
    const std::vector<Action>& actions = list(stage);
    for (Walker& at = walker(stage); at.next < actions.size() && step(stage, at, actions[at.next]);) ++at.next;
  }

  // One action of the rank whose clock is behind: cores go to whoever comes first.
  void walk_earliest() {
    const auto earliest = std::ranges::min_element(ready_, {}, [this](int stage) { return walker(stage).lane.clock(); });
    const int stage = *earliest;
    ready_.erase(earliest);
    const std::vector<Action>& actions = list(stage);
    Walker& at = walker(stage);
    if (at.next == actions.size() || !step(stage, at, actions[at.next])) return;
    if (++at.next < actions.size()) ready_.push_back(stage);
    double least = at.lane.clock();
    for (const Walker& other : walkers_) least = std::min(least, other.lane.clock());
    turns_.pass(least);
  }

  // On a core, once there is one; when it began.
  double work(Walker& at, const ActionTime& time) {
    if (shares_cores()) {
      const double free = turns_.take(at.lane.clock(), time.seconds);
      at.lane.wait(free, free, &Breakdown::bubble);
    }
    const double begin = at.lane.clock();
    if (time.seconds > 0) at.lane.work(time.work, time.seconds);
    return begin;
  }

  // False: it stands until another rank has come further.
  bool step(int stage, Walker& at, const Action& action) {
    const WalkedAction& what = actions_[static_cast<size_t>(stage)].of(action);
    if (program::is_transfer(action.kind)) {
      program::transfer_of(action).sends ? send(stage, at, action, what) : receive(stage, at, action, what);
      return true;
    }
    if (what.effects->lane == Lane::kCopies) return copy(stage, at, action, what);
    if (what.time.stages > 1) return meet(stage, at, action, what);
    if (what.time.network > 0) return communicate(stage, at, action, what);
    return compute(stage, at, action, what);
  }

  Channel& channel(int from, int to, bool forward) {
    return channels_[(static_cast<size_t>(from) * static_cast<size_t>(stages_) + static_cast<size_t>(to)) * 2 + (forward ? 1 : 0)];
  }

  void receive(int stage, Walker& at, const Action& action, const WalkedAction& what) {
    const program::Transfer transfer = program::transfer_of(action);
    Channel& from = channel(layout_.pipeline.rank_of(transfer.neighbour), stage, transfer.forward);
    at.pending.start(*what.effects, action, Started{.channel = static_cast<int>(&from - channels_.data()), .index = from.received++});
  }

  // Behind those before it on the channel, of which so many are kept at most.
  void send(int stage, Walker& at, const Action& action, const WalkedAction& what) {
    const program::Transfer transfer = program::transfer_of(action);
    Channel& to = channel(stage, layout_.pipeline.rank_of(transfer.neighbour), transfer.forward);
    const auto depth = static_cast<size_t>(program_.channel_depth);
    if (to.sent.size() >= depth) at.lane.wait(0, to.sent[to.sent.size() - depth].end, &Breakdown::pipeline);
    const double begin = std::max(at.lane.clock(), to.sent.empty() ? 0 : to.sent.back().end);
    const double takes = what.time.over_nics ? at.lane.shared(what.time.network) : what.time.network;
    to.sent.push_back({.begin = begin, .end = begin + takes});
    at.sends = std::max(at.sends, begin + takes);  // kSent: whoever waits for it waits for all
    boxes_.trip(stage, action, what.time.over_nics, begin, begin + takes);
    at.lane.wait(0, at.lane.clock() + what.time.exposed * takes, &Breakdown::pipeline);
    if (to.waiting >= 0) ready_.push_back(std::exchange(to.waiting, -1));
  }

  // What the action has to wait for, trips in the order of their ends; false where some of it has not even begun.
  bool find_used(int stage, Walker& at, const Action& action, const WalkedAction& what) {
    used_.clear();
    // What has ended before the clock needs no look.
    const bool travels = at.lane.flies() || at.trips > at.lane.clock() || at.open > 0;
    if (!what.waits_for_tensors && !(what.waits && travels)) return true;
    used_ = at.pending.of(*what.effects, action);
    if (std::ranges::any_of(what.effects->touches, [](const program::Touch& touch) { return touch.what == program::Resource::kSent; }))
      used_.push_back({.trip = {.begin = 0, .end = at.sends}});
    for (Started& started : used_) {
      if (started.meeting) {
        if (!started.meeting->is_whole()) {
          started.meeting->waiting.push_back(stage);
          return false;
        }
        started.trip = started.meeting->trip();
      }
      if (started.channel < 0) continue;
      Channel& from = channels_[static_cast<size_t>(started.channel)];
      if (from.sent.size() <= started.index) {
        from.waiting = stage;
        return false;
      }
      started.trip = from.sent[started.index];
    }
    if (used_.size() > 1) std::ranges::sort(used_, {}, [](const Started& started) { return std::pair(started.flight, started.trip.end); });
    return true;
  }
  void wait_for_used(Walker& at) {
    for (const Started& started : used_) {
      if (started.flight >= 0)
        at.lane.wait_for(started.flight);
      else
        at.lane.wait(started.trip.begin, started.trip.end, started.term);
    }
  }

  bool compute(int stage, Walker& at, const Action& action, const WalkedAction& what) {
    if (!find_used(stage, at, action, what)) return false;
    wait_for_used(at);
    const double begin = work(at, what.time);
    if (!used_.empty()) at.pending.join(*what.effects, action);
    if (program::computes(action.kind)) {
      if (at.first < 0) at.first = begin;
      at.last = at.lane.clock();
    }
    boxes_.work(stage, action, begin, at.lane.clock());
    return true;
  }

  // On links, NICs or between device and host, behind what it uses.
  int fly(int stage, Walker& at, const Action& action, const WalkedAction& what, Carrier carrier) {
    const ActionTime& time = what.time;
    Flight flight{.carrier = carrier, .seconds = carrier == Carrier::kCopies ? time.copies : time.network, .term = time.term};
    flight.loss = time.mutual ? time.exposed / (1 + time.exposed) : time.exposed;
    flight.drag = time.mutual ? flight.loss : 0;
    for (const Started& started : used_) {
      if (started.flight >= 0) flight.after.push_back(started.flight);
      flight.ready = std::max(flight.ready, started.trip.end);
    }
    const int number = at.lane.fly(std::move(flight));
    boxes_.take_off(stage, number, action);
    return number;
  }

  bool copy(int stage, Walker& at, const Action& action, const WalkedAction& what) {
    if (!find_used(stage, at, action, what)) return false;
    at.pending.start(*what.effects, action, Started{.flight = fly(stage, at, action, what, Carrier::kCopies)});
    return true;
  }

  bool communicate(int stage, Walker& at, const Action& action, const WalkedAction& what) {
    if (!find_used(stage, at, action, what)) return false;
    const bool waits = what.effects->join == Join::kAtOnce;
    if (waits || what.effects->host_reads) wait_for_used(at);
    work(at, what.time);
    const int number = fly(stage, at, action, what, what.time.over_nics ? Carrier::kNics : Carrier::kLinks);
    if (waits) {
      at.lane.wait_for(number);
      at.pending.join(*what.effects, action);
    } else {
      at.pending.start(*what.effects, action, Started{.flight = number});
    }
    return true;
  }

  // A collective of several stages begins once the last of them has come to it with all that it uses there. Those that do not stand for it
  // have gone on by then.
  bool meet(int stage, Walker& at, const Action& action, const WalkedAction& what) {
    const bool stands = what.effects->join == Join::kAtOnce;
    Meeting& meeting = meetings_[{action.kind, action.unit, at.meetings[{action.kind, action.unit}]}];
    if (!at.arrived) {
      if (!find_used(stage, at, action, what)) return false;
      wait_for_used(at);
      work(at, what.time);
      arrive(stage, action, what, meeting);
      at.arrived = stands;
    }
    if (stands && !meeting.is_whole()) {
      meeting.waiting.push_back(stage);
      return false;
    }
    at.arrived = false;
    ++at.meetings[{action.kind, action.unit}];
    if (stands) {
      at.lane.wait(meeting.begin, meeting.trip().end, what.time.term);
      at.pending.join(*what.effects, action);
    } else {
      at.pending.start(*what.effects, action, Started{.term = what.time.term, .meeting = &meeting});
    }
    return true;
  }

  void arrive(int stage, const Action& action, const WalkedAction& what, Meeting& meeting) {
    meeting.begin = std::max(meeting.begin, walker(stage).lane.clock());
    meeting.seconds = std::max(meeting.seconds, what.time.network);
    meeting.stages = what.time.stages;
    meeting.arrived.emplace_back(stage, action);
    ++walker(stage).open;
    if (!meeting.is_whole()) return;
    for (const auto& [other, of_other] : meeting.arrived) {
      --walker(other).open;
      walker(other).trips = std::max(walker(other).trips, meeting.trip().end);
      boxes_.trip(other, of_other, what.time.over_nics, meeting.begin, meeting.trip().end);
    }
    ready_.insert(ready_.end(), meeting.waiting.begin(), meeting.waiting.end());
    meeting.waiting.clear();
  }

  const program::Layout& layout_;
  const program::Program& program_;
  const WalkOptions options_;
  const int stages_;  // ranks of the pipeline
  std::deque<WalkedActions> actions_;
  std::deque<Walker> walkers_;
  std::vector<Channel> channels_;
  std::map<MeetingKey, Meeting> meetings_;
  std::vector<int> ready_;
  std::vector<Started> used_;  // by the action at hand
  CoreTurns turns_;
  StepBoxes boxes_;
};

}  // namespace

StepWalk walk_step(const program::Layout& layout, const program::Program& program, const TimeOfAction& time_of, const WalkOptions& options) {
  return Walk(layout, program, time_of, options).run();
}

}  // namespace lockstep::plan
