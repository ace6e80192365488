#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/program/effects.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/placement.h"

namespace lockstep::program {
namespace {

using Actions = std::vector<Action>;

Action fetch(int unit, Moved moved) { return {.kind = ActionKind::kFetch, .unit = unit, .moved = moved}; }
Action evict(int unit, Moved moved) { return {.kind = ActionKind::kEvict, .unit = unit, .moved = moved}; }

// Of units that are not sharded: the host takes the place of the other ranks.
Actions parameters_from_host(Actions actions, const Layout& layout) {
  for (Action& action : actions) {
    if (action.unit < 0 || layout.sharded_parameters(layout.group_of(action.unit))) continue;
    if (gathers(action.kind)) action = fetch(action.unit, Moved::kParameters);
    if (drops_gathered(action.kind)) action = evict(action.unit, Moved::kParameters);
  }
  return actions;
}

// This rank's shard comes while the unit before it is gathered.
Actions shards_from_host(const Actions& actions) {
  Insertions before;
  std::map<int, size_t> dropped;  // unit -> position behind its latest RESHARD
  std::optional<size_t> previous;  // UNSHARD
  for (size_t i = 0; i < actions.size(); ++i) {
    const int unit = actions[i].unit;
    if (drops_gathered(actions[i].kind)) {
      before[i + 1].push_back(evict(unit, Moved::kParameters));
      dropped[unit] = i + 1;
    } else if (gathers(actions[i].kind)) {
      const auto drop = dropped.find(unit);
      const size_t ahead = previous.value_or(i);
      before[drop == dropped.end() ? ahead : std::max(ahead, drop->second)].push_back(fetch(unit, Moved::kParameters));
      previous = i;
    }
  }
  return merged(actions, before);
}

// Where a layer's input leaves after F, and comes back beside the backward of the layer above.
Actions inputs_to_host(const Actions& actions, const Layout& layout) {
  std::map<std::pair<int, int>, size_t> ran, goes;  // by layer and microbatch: behind F, in front of its backward
  for (size_t i = 0; i < actions.size(); ++i) {
    const std::pair key(actions[i].layer, actions[i].microbatch);
    if (work_of(actions[i].kind) == Work::kForward) ran[key] = i + 1;
    if (goes_back(actions[i].kind) || work_of(actions[i].kind) == Work::kAgain) goes.try_emplace(key, i);
  }
  Insertions before;
  for (size_t i = 0; i < actions.size(); ++i) {
    const int layer = actions[i].layer, microbatch = actions[i].microbatch;
    if (work_of(actions[i].kind) != Work::kAgain || layout.recompute_of(layer) != arch::Recompute::kFull) continue;
    Action move{.kind = ActionKind::kEvict, .layer = layer, .microbatch = microbatch, .moved = Moved::kActivation};
    before[ran.at({layer, microbatch})].push_back(move);
    move.kind = ActionKind::kFetch;
    const auto above = goes.find({layer + 1, microbatch});  // of the last layer of a stage it is on another rank
    before[above == goes.end() ? i : above->second].push_back(move);
  }
  return merged(actions, before);
}

// The update, unit by unit.
class Updates {
 public:
  Updates(const Layout& layout, int rank, const HostPlan& plan, const Actions& actions)
      : layout_(layout), rank_(rank), plan_(plan), actions_(actions) {}

  Actions result() {
    const auto first = first_backward();
    for (size_t i = 0; i < actions_.size(); ++i) {
      if (i == first && !plan_.disk_units.empty()) add(fetch(plan_.disk_units.front(), Moved::kOptimizer));
      const Action& action = actions_[i];
      if (updates(action.kind) && action.unit < 0) {
        for (const arch::FlatUnit& unit : layout_.flat_layout(rank_).units) step(unit.id);
      } else if (updates(action.kind)) {
        step(action.unit);
      } else if (stepping_ && gathers(action.kind)) {
        gather_ = action;
      } else {
        if (action.kind == ActionKind::kGatherUpdate) begin(action.unit);
        add(action);
      }
    }
    gather();
    return std::move(result_);
  }

 private:
  void add(const Action& action) { result_.push_back(action); }

  // Of the microbatch that ends last: what is on disk has its time to come. The end where nothing is updated.
  size_t first_backward() const {
    const auto steps = [](const Action& action) { return updates(action.kind); };
    if (std::none_of(actions_.begin(), actions_.end(), steps)) return actions_.size();
    const auto backward = [](const Action& action) { return computes(action.kind) && work_of(action.kind) != Work::kForward; };
    const auto last = std::find_if(actions_.rbegin(), actions_.rend(), backward);
    const auto found = std::find_if(actions_.begin(), actions_.end(), [&](const Action& action) {
      return backward(action) && action.microbatch == last->microbatch;
    });
    return static_cast<size_t>(found - actions_.begin());
  }

  // The states of the next unit on disk come while this one is updated.
  void begin(int unit) {
    if (std::exchange(begun_, unit) == unit) return;
    const auto on_disk = std::find(plan_.disk_units.begin(), plan_.disk_units.end(), unit);
    if (on_disk != plan_.disk_units.end() && on_disk + 1 != plan_.disk_units.end())
      add(fetch(*(on_disk + 1), Moved::kOptimizer));
  }

  void step(int unit) {
    stepping_ = true;
    begin(unit);
    add({.kind = ActionKind::kStep, .unit = unit});
    if (!layout_.offload.parameters) add(fetch(unit, Moved::kParameters));
    if (plan_.on_disk(unit)) add(evict(unit, Moved::kOptimizer));
    gather();
  }

  // Updated parameters are gathered one STEP later: their way from the host is hidden behind it.
  void gather() {
    if (gather_) add(*gather_);
    gather_.reset();
  }

  const Layout& layout_;
  const int rank_;
  const HostPlan& plan_;
  const Actions& actions_;
  bool stepping_ = false;
  int begun_ = -1;  // unit whose update has begun
  std::optional<Action> gather_;
  Actions result_;
};

Actions offloaded(Actions actions, const Layout& layout, int rank) {
  const HostPlan plan = host_plan(layout, rank);
  if (layout.offload.parameters) actions = shards_from_host(parameters_from_host(std::move(actions), layout));
  if (layout.offload.activations) actions = inputs_to_host(actions, layout);
  if (layout.offload.optimizer) actions = Updates(layout, rank, plan, actions).result();
  return actions;
}

}  // namespace

Program offload(Program program, const Layout& layout) {
  const Offload& what = layout.offload;
  if (!what.optimizer && !what.parameters && !what.activations) return program;
  return with_lists(std::move(program), [&](int rank, const Actions& actions) { return offloaded(actions, layout, rank); });
}

}  // namespace lockstep::program
