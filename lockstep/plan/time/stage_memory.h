// What the ranks of each stage need of their devices' memory (program/predict/memory.h), and whether it is there.
#pragma once

#include <vector>

#include "lockstep/plan/time/step_estimate.h"
#include "lockstep/program/predict/steps.h"

namespace lockstep::plan {

// By coordinate on pp; `busy` is left 0. Peaks are those that the program predicts, reserved is peak x (1 + fragmentation) + Stack::reserved. Rows
// that come to experts on other ranks are EstimateOptions::imbalance times those of balanced routing, where the layout bounds them in no other
// way: the program's own prediction has room for all rows of all ranks.
struct StageMemory {
  std::vector<StageEstimate> stages{};
  double host = 0;  // bytes of a node at most, of what is offloaded
};
// Nothing says how many rows may come to one rank from the experts' other ranks, so that a run has room for all of them.
bool has_room_for_all_rows(const program::Layout& layout);
StageMemory stage_memory(const program::Layout& layout, const program::JudgedSteps& steps, const Cluster& cluster, const Stack& stack,
                         const EstimateOptions& options);

// On every device, and on the hosts. A size that nobody says is large enough.
bool fits(const StageMemory& memory, const Cluster& cluster);

}  // namespace lockstep::plan
