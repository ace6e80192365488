// A step without running it: how long each action takes by itself, and when every action of every rank would run.
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

// By a cost file (cost_file.h); transfers and collectives by their bytes. Program of layers.
ActionTimes cost_times(const program::Program& program, const program::Layout& layout, const StepCosts& costs);

// By what was measured: the work of each action; a transfer from when both its ends were there until it had come, or where a rank
// waited for it until that went on; a collective from when the last rank came.
ActionTimes measured_times(const program::Program& program, const program::Layout& layout, const Spans& measured);

// Medians of measured times over microbatches and steps (at least one): what a rank does of one kind for one layer, stage,
// bucket or unit takes the same whenever it does it.
ActionTimes typical_times(const program::Program& program, const std::vector<ActionTimes>& steps);

struct Simulation {
  Spans spans;
  Utilisation use;
  // From the first action to the one that ends last: each began when the one before it in this list ended.
  std::vector<ActionRef> critical_path;
  // From the end of a step to the end of the next: the step's own time, but less with post-validation, where a rank that is
  // done begins the next one.
  double period = 0;
};

// Walks all lists at once, in time linear in the number of actions; what an action waits for says program/effects.h. The calls of
// one group of ranks, and the sends of one channel, follow each other. A SEND waits on its rank for the one Program::channel_depth
// before it on its channel. What communicates and what computes does not slow the other down.
// Program of stages (then F, B and I wait for the stage they depend on, and transfers take no time) or of layers.
// InternalError where the ranks wait for each other in a circle, which verify() finds before.
Simulation simulate(const program::Program& program, const program::Layout& layout, const ActionTimes& times);

}  // namespace lockstep::plan
