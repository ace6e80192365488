// What a step tells of its layers with experts: how many rows each expert got, how many were dropped, and the losses that balance them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/program/layout.h"

namespace lockstep::engine {

// Of one layer, sums over the microbatches and ranks of a step.
struct ExpertLoad {
  int layer = 0;                     // of the layer table
  std::string name{};                // "blocks.3"
  std::span<const double> routed{};  // assignments to each expert [E], before dropping
  double dropped = 0;                // of them, beyond the capacity
  double aux_sum = 0;                // over the valid tokens, without its coefficient
  double z_sum = 0;
  double further_rounds = 0;         // beyond the first one, in which it ran because more rows came than moe.imbalance_limit has room for

  double total() const;           // assignments
  // The largest of `routed` over their mean: 1 is balanced, E is one expert alone. 0 where nothing was routed.
  double max_over_mean() const;
};

// Of every layer with experts, in their order; views into `loads` (StepResult::loads). InternalError where these have another length
// than Layout::load_numbers.
std::vector<ExpertLoad> expert_loads(const program::Layout& layout, std::span<const double> loads);

// What a checkpoint remembers of them, the same in every layout: {"blocks.3": [12, 40, 8]}, `routed` of each layer. {} of no loads.
Json routed_json(const program::Layout& layout, std::span<const double> loads);
// The inverse, all else 0. CheckpointError LS1302 where `json` is of other layers or experts,
// counts below 0, or has a layer without any assignment.
std::vector<double> loads_of_json(const program::Layout& layout, const Json& json);

}  // namespace lockstep::engine
