// What makes one layout slower than another, and why a layout is not the one.
#pragma once

#include <string>

#include "lockstep/plan/time/step_estimate.h"

namespace lockstep::plan {

// Of `other` beside `best`: "4 % slower: data waits 12.0 ms more, bubble 3.1 ms less". The terms that differ most.
std::string difference_text(const StepEstimate& best, const StepEstimate& other);

}  // namespace lockstep::plan
