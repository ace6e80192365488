// What a rank has started and not yet waited for, and which action waits for it: the rule of program.h.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "lockstep/plan/matching.h"

namespace lockstep::plan {

// A collective that a rank waits for where it stands: LOSS, REDUCE_PARTIAL, NORM.
bool waits_for_result(program::ActionKind kind, const program::Layout& layout);

class Uses {
 public:
  Uses(const program::Layout& layout, int rank) : layout_(&layout), rank_(rank) {}

  // An asynchronous action has begun.
  void start(const ActionRef& ref, const program::Action& action);
  // What `action` has to wait for.
  std::vector<ActionRef> of(const program::Action& action);
  // `action` has waited: it is not asked for again.
  void used(const program::Action& action);

 private:
  using Arrival = std::tuple<bool, int, int>;  // forward, stage, microbatch
  std::optional<Arrival> arrival(const program::Action& action) const;
  const std::vector<int>& units(const program::Action& action);

  const program::Layout* layout_;
  int rank_;
  std::map<Arrival, ActionRef> arrivals_;
  std::vector<ActionRef> sends_, reductions_, tokens_;
  std::vector<ActionRef> to_validate_;  // LOSS and NORM of the step before
  std::map<int, ActionRef> buckets_, gathered_, fetched_, states_;  // by bucket or unit
  std::map<std::pair<int, int>, ActionRef> inputs_;                 // layer, microbatch
  std::map<std::pair<program::ActionKind, int>, std::vector<int>> units_;
  std::optional<std::vector<arch::ParamSpec>> table_;
};

}  // namespace lockstep::plan
