// When every action of a step runs, be it simulated or measured, and what follows from it.
#pragma once

#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::plan {

struct Span {
  double start = 0;  // since the beginning of the step
  double end = 0;
  double seconds() const { return end - start; }
};

// One for each action of each rank, as Program::ranks. What a rank computes lies in the order of its list and does not
// overlap; communication and copies begin where they stand and may overlap with all else. A computing action begins once
// what it uses is there, so that the gaps between them are waiting. A RECV begins when it is posted and its data is on the
// way, and ends when they have come; a collective begins when the last rank has come to it.
using Spans = std::vector<std::vector<Span>>;

// F, B, I, W and RECOMPUTE: what a pipeline is there to keep going.
struct Utilisation {
  double step_seconds = 0;      // end of the last action
  double pipeline_seconds = 0;  // end of the last F, B, I, W or RECOMPUTE of any rank
  std::vector<double> busy;     // of each rank: time spent with them
  // The share of pipeline_seconds in which the rank did nothing of them; and the mean over the ranks.
  double bubble(int rank) const;
  double bubble() const;
};
Utilisation utilisation(const program::Program& program, const Spans& spans);

}  // namespace lockstep::plan
