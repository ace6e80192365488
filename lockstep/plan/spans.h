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

// How busy F, B, I, W and RECOMPUTE keep the ranks.
struct Utilisation {
  double step_seconds = 0;      // end of the last action
  double pipeline_seconds = 0;  // end of the last F, B, I, W or RECOMPUTE of any rank
  double longest_window = 0;    // of all ranks: from the first of them to the last
  std::vector<double> busy;     // of each rank: time spent with them
  double mean_busy() const;
  // 1 - work / longest window, as papers count it: ranks that begin and end one after the other have none.
  double bubble() const;
  // The share of pipeline_seconds in which the rank does nothing of them; and the mean over the ranks.
  double idle(int rank) const;
  double idle() const;
};
Utilisation utilisation(const program::Program& program, const Spans& spans);

// Of an even number of values the mean of both in the middle. There is at least one.
double median(std::vector<double> values);

}  // namespace lockstep::plan
