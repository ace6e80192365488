// A step without running it: when every action of every rank would run.
#pragma once

#include <vector>

#include "lockstep/plan/action_times.h"
#include "lockstep/plan/matching.h"
#include "lockstep/plan/spans.h"

namespace lockstep::plan {

struct Simulation {
  Spans spans;
  Utilisation use;
  // From the first action to the one that ends last: each began when the one before it in this list ended.
  std::vector<ActionRef> critical_path;
  // From the end of a step to the end of the next: the step's own time, but less with post-validation, where a rank that is
  // done begins the next one.
  double period = 0;
};

// Walks all lists at once, in time linear in the number of actions. A rank computes in the order of its list. An asynchronous
// action (program.h) begins where it stands and is waited for at the first action that uses its result; the calls of one
// group of ranks, and the sends of one channel, follow each other. A SEND waits on its rank for the one
// Program::channel_depth before it on its channel; LOSS for all of them. What communicates and what computes does not slow the other down.
// Program of stages (then F, B and I wait for the stage they depend on, and transfers take no time) or of layers.
// InternalError where the ranks wait for each other in a circle, which verify() finds before.
Simulation simulate(const program::Program& program, const program::Layout& layout, const ActionTimes& times);

}  // namespace lockstep::plan
