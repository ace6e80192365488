// When every action of one pipeline runs: the lists of the ranks of one coordinate on the data axes, action by action, as program/effects.h says
// what waits for what. All other pipelines do the same at the same time, so a collective over them begins when this one's rank comes to it.
#pragma once

#include <vector>

#include "lockstep/plan/time/walked_actions.h"

namespace lockstep::plan {

// Lanes of a rank: what it computes; collectives inside a domain, and over NICs, each one after the other; copies between device and host; a
// channel to each neighbour of the pipeline and direction, whose sends follow each other (Program::channel_depth). Beside a collective on its way
// computing loses ActionTime::exposed of the time, and a send that shares the NIC with it has half of that.
struct RankWalk {
  Breakdown spent{};      // of the step: all that passed on the compute lane
  double busy = 0;        // of it, without waits
  double first = 0, last = 0;  // begin of the first and end of the last F, B, I, W or RECOMPUTE
};
struct StepWalk {
  double seconds = 0;  // from the end of one step to the end of the next
  std::vector<RankWalk> ranks{};  // by coordinate on pp; of the last step walked
  std::vector<TimedBox> boxes{};       // of the first step
};

struct WalkOptions {
  int pipeline = 0;  // which: its ranks are this one and every Layout::pipelines()-th behind it
  int computing = 0;  // ranks of the pipeline that compute at one time at most, where they share cores; 0: all of them
  bool boxes = false;
};

// Where something of a step is still on its way at its end (parameters that ZeRO gathers behind the update, post-validation), the next step is
// walked too, and what the walk says is of that one. In the order of the lists, a few hundred nanoseconds an action. InternalError where ranks
// wait for each other in a circle.
StepWalk walk_step(const program::Layout& layout, const program::Program& program, const TimeOfAction& time_of, const WalkOptions& options = {});

}  // namespace lockstep::plan
