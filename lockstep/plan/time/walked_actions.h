// What the walk asks of each action of a rank, made once for those that differ in the microbatch alone.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/plan/time/action_seconds.h"

namespace lockstep::plan {

// Time of an action of the rank at this coordinate on pp; asked once for actions that differ in the microbatch alone.
using TimeOfAction = std::function<ActionTime(int coordinate, const program::Action& action)>;

struct WalkedAction {
  const program::Effects* effects = nullptr;
  ActionTime time{};
  // Whether something that the rank does not stand for changes what it touches: tensors of a microbatch, or else.
  bool waits_for_tensors = false, waits = false;
};

// Of the rank at one coordinate on pp. All that it is made with outlives it.
class WalkedActions {
 public:
  WalkedActions(const program::Layout& layout, const program::Program& program, int coordinate, const std::vector<program::Action>& list, int rank,
                const TimeOfAction& time_of);
  const WalkedAction& of(const program::Action& action);  // valid as long as this object

 private:
  static constexpr size_t kVariants = 1 + program::kParts;  // what is moved, or the part
  size_t index_of(program::Resource what, int index) const;
  void find_waits(WalkedAction& action) const;

  const int coordinate_;
  const TimeOfAction& time_of_;
  const size_t places_;  // of layers, units, stages, buckets
  program::EffectTable effects_;
  std::vector<bool> asynchronous_;  // by resource and index: something changes it behind the back of what computes
  std::vector<std::unique_ptr<WalkedAction>> known_;  // by kind, variant and place
};

}  // namespace lockstep::plan
