// What the search says of layouts in words: which terms of a step make the difference between two of them, what one lacks.
#pragma once

#include <string>

#include "lockstep/plan/search/search.h"

namespace lockstep::plan {

// "bubble 310 ms less, tensor parallel waits 120 ms less; pipeline sends 40 ms more": of `a` beside `b`, the largest first, as far as they
// make a difference.
std::string difference_text(const StepEstimate& a, const StepEstimate& b);
// "4.2 %".
std::string share_text(double share);

// Of each in its place of the list: faster than the next, slower than the best, and why.
void add_reasons(std::vector<Found>& best);

// "needs 84.1 GiB of 80.0 GiB on stage 3"; of what fits, but not into `room`: "needs 79.1 GiB on stage 3 and leaves less than 4.00 GiB of 80.0 GiB".
std::string memory_text(double needed, double room, const Cluster& cluster, int stage);
// Of the stage that needs most of a layout that does not fit: that, or that the hosts are too small for what is offloaded.
std::string shortage_text(const StageEstimate& worst, double room, const Cluster& cluster);
// Of the worst stage, with what it is: "parameters 17.5 GiB, gradients 17.5 GiB, ...".
std::string parts_text(const StageEstimate& stage);

}  // namespace lockstep::plan
