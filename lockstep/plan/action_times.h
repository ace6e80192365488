// How long each action takes by itself: what a simulation starts from.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/spans.h"

namespace lockstep::plan {

struct StepCosts;

// One for each action of each rank, as Program::ranks. Computing: its work. SEND: from its start until the data is there;
// RECV takes none of its own. Collectives: from when all ranks have come.
struct ActionTimes {
  std::vector<std::vector<double>> seconds;
  bool in_units = false;    // of work of a stage, not of time
  std::string source = {};  // "equal stages", "costs.toml", "measured in step 10"
};

// F, I, W and RECOMPUTE of a whole stage take 1 and B takes 2, spread evenly over its layers; all else takes none. Program
// of stages or of layers.
ActionTimes unit_times(const program::Program& program, const program::Layout& layout);

// By a cost file (cost_file.h); transfers and collectives by their bytes.
ActionTimes cost_times(const program::Program& program, const program::Layout& layout, const StepCosts& costs);

// By what was measured: the work of each action; a transfer from when both its ends were there until it had come, or where a rank
// waited for it until that went on; a collective from when the last rank came.
ActionTimes measured_times(const program::Program& program, const program::Layout& layout, const Spans& measured);

// Medians of measured times over microbatches and steps (at least one): what a rank does of one kind for one layer, stage,
// bucket or unit takes the same whenever it does it.
ActionTimes typical_times(const program::Program& program, const std::vector<ActionTimes>& steps);

}  // namespace lockstep::plan
