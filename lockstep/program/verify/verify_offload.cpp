#include "lockstep/program/verify/rules.h"

#include <map>
#include <set>
#include <utility>

#include "lockstep/program/effects.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/verify/rank_check.h"

namespace lockstep::program {
namespace {

constexpr size_t kBuffers = 2;  // double buffering

class OffloadCheck : RankCheck {
 public:
  OffloadCheck(const Program& program, const Layout& layout, int rank)
      : RankCheck(program, layout, rank), plan_(host_plan(layout, rank)) {}

  std::vector<std::string> run() {
    for (at_ = 0; at_ < actions_.size(); ++at_) {
      const Action& action = actions_[at_];
      if (action.kind == ActionKind::kStep) step(action);
      if (action.kind == ActionKind::kGatherUpdate && plan_.on_disk(action.unit) && !states_.contains(action.unit))
        problem("state", cat(text(), ", but its state is on disk"));
      if (action.kind == ActionKind::kUnshard) gather(action.unit);
      if (action.kind == ActionKind::kReshard) gathered_.erase(action.unit);
      if (computes(action.kind)) compute(action);
      if (is_move(action.kind)) move(action);
    }
    at_end();
    return std::move(problems_);
  }

 private:
  using Key = std::pair<int, int>;  // layer, microbatch
  enum class Place { kDevice, kHost, kBack };

  std::string text() const { return RankCheck::text(at_); }

  void move(const Action& action) {
    const bool fetch = fetches(action.kind);
    if (action.moved == Moved::kActivation) return fetch ? fetch_input(action) : evict_input(action);
    if (action.moved == Moved::kOptimizer) return fetch ? fetch_state(action.unit) : evict_state(action.unit);
    fetch ? fetch_parameters(action.unit) : evict_parameters(action.unit);
  }

  void fetch_parameters(int unit) {
    if (layout_.offload.parameters) {
      if (!fetched_.insert(unit).second) problem("fetch", cat(text(), " while they are fetched"));
      waiting_.insert(unit);
      if (layout_.sharded_parameters() && waiting_.size() > kBuffers)
        problem("fetch", cat(text(), ": ", waiting_.size(), " units wait to be gathered"));
      if (!stepped_.empty()) problem("fetch", cat(text(), " after STEP: the next step fetches them"));
    } else if (!layout_.offload.optimizer) {
      problem("fetch", cat(text(), ", but no parameters come from the host"));
    } else {
      if (!stepped_.contains(unit)) problem("fetch", cat(text(), " before their STEP"));
      if (!fetched_.insert(unit).second) problem("fetch", cat(text(), " a second time"));
    }
  }

  void evict_parameters(int unit) {
    if (!layout_.offload.parameters)
      problem("fetch", cat(text(), ", but they stay on the device"));
    else if (fetched_.erase(unit) == 0)
      problem("fetch", cat(text(), " of what is not fetched"));
    else if (waiting_.erase(unit) > 0)
      problem("fetch", cat(text(), " before anything used them"));
    else if (gathered_.contains(unit))
      problem("fetch", cat(text(), " while they are gathered from it"));
  }

  void gather(int unit) {
    gathered_.insert(unit);
    waiting_.erase(unit);
    const bool needed = layout_.offload.parameters || (layout_.offload.optimizer && !stepped_.empty());
    if (needed && !fetched_.contains(unit)) problem("fetch", cat(text(), " of what is not fetched"));
  }

  void compute(const Action& action) {
    for (const int unit : units_read(action, table_)) {
      if (layout_.offload.parameters && !layout_.sharded_parameters() && !fetched_.contains(unit))
        problem("fetch", cat(text(), " reads ", name(unit), ", which is not fetched"));
      if (!layout_.sharded_parameters()) waiting_.erase(unit);
    }
    if (work_of(action.kind) == Work::kForward) forward_.insert({action.layer, action.microbatch});
    if (work_of(action.kind) == Work::kAgain && moves_input(action.layer) &&
        inputs_[{action.layer, action.microbatch}] != Place::kBack)
      problem("input", cat(text(), " without its input"));
  }

  void step(const Action& action) {
    if (layout_.offload.parameters && stepped_.empty())
      for (const int unit : fetched_) problem("fetch", cat(name(unit), " is still fetched at STEP"));
    stepped_.insert(action.unit);
    if (plan_.on_disk(action.unit) && !states_.contains(action.unit))
      problem("state", cat(text(), ", but its state is on disk"));
  }

  void fetch_state(int unit) {
    if (!plan_.on_disk(unit)) return problem("state", cat(text(), " is not on disk"));
    if (stepped_.contains(unit)) problem("state", cat(text(), " after its STEP"));
    if (!states_.insert(unit).second) problem("state", cat(text(), " while it is fetched"));
    if (states_.size() > kBuffers) problem("state", cat(text(), ": ", states_.size(), " units at a time"));
  }

  void evict_state(int unit) {
    if (!stepped_.contains(unit)) problem("state", cat(text(), " before its STEP"));
    if (states_.erase(unit) == 0) return problem("state", cat(text(), " of what is not fetched"));
    evicted_states_.insert(unit);
  }

  bool moves_input(int layer) const {
    return layout_.offload.activations && layout_.recompute_of(layer) == arch::Recompute::kFull;
  }

  void evict_input(const Action& action) {
    const Key key{action.layer, action.microbatch};
    if (!moves_input(action.layer)) return problem("input", cat(text(), ", which stays on the device"));
    if (!forward_.contains(key)) problem("input", cat(text(), " before its F"));
    if (inputs_[key] != Place::kDevice) problem("input", cat(text(), " a second time"));
    inputs_[key] = Place::kHost;
  }

  void fetch_input(const Action& action) {
    const Key key{action.layer, action.microbatch};
    if (inputs_[key] != Place::kHost) problem("input", cat(text(), " of what is not on the host"));
    inputs_[key] = Place::kBack;
  }

  void at_end() {
    for (const auto& [key, place] : inputs_)
      if (place == Place::kHost) problem("input", cat(name(key.first), " m", key.second, " is never fetched"));
    if (stepped_.empty()) return;
    for (const int unit : plan_.disk_units)
      if (!evicted_states_.contains(unit)) problem("state", cat(name(unit), " is not back on disk at the end"));
    if (!layout_.offload.optimizer || layout_.offload.parameters) return;
    for (const int unit : stepped_)
      if (!fetched_.contains(unit)) problem("fetch", cat(name(unit), " is not fetched after its STEP"));
  }

  const HostPlan plan_;
  size_t at_ = 0;
  std::set<int> fetched_, waiting_, gathered_;  // units: parameters from the host, of them unused, gathered
  std::set<int> stepped_, states_, evicted_states_;
  std::set<Key> forward_;
  std::map<Key, Place> inputs_;
};

}  // namespace

std::vector<std::string> check_offloaded(const Program& program, const Layout& layout, int rank) {
  return OffloadCheck(program, layout, rank).run();
}

}  // namespace lockstep::program
