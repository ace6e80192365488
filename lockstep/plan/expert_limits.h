// Limits of the rows that come to experts (moe.imbalance_limit) that a message may propose.
#pragma once

#include <vector>

#include "lockstep/program/layout.h"

namespace lockstep::plan {

// Round ones from 1 on, four to each doubling: 1, 1.25, 1.5, 1.75, 2, 2.5, 3 ... up to the last with which a rank has less room than in the
// worst case, whatever limit the layout has; 1 alone where none has. Of layouts with experts.
std::vector<double> round_limits(const program::Layout& layout);

}  // namespace lockstep::plan
