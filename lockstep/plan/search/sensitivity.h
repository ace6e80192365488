// How much the best layout depends on each constant of the stack.
#pragma once

#include <vector>

#include "lockstep/plan/search/quick_estimate.h"

namespace lockstep::plan {

// Each of TimeSource::constants 10 % less and more, one at a time; what is 0 stays so and is left out. The change of a step is that of its closed
// form, applied to the estimate; another layout is best where it is faster then, or where the best one does not fit any more. `best`: fastest
// first, estimated. `tier`: of the job; it has the job's constants again afterwards.
std::vector<Sensitivity> sensitivities(const Job& job, QuickTier& tier, const std::vector<Found>& best);

}  // namespace lockstep::plan
