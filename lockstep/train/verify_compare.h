// Gradients and parameters of a layout against those of its one-rank twin.
#pragma once

#include <vector>

#include "lockstep/train/verify.h"
#include "lockstep/train/verify_twin.h"

namespace lockstep::train {

// True where the gradient is zero in exact arithmetic, so that what is computed of it is rounding, of the size of what was
// added up: a key bias without rotation (it adds the same to all scores of a query, which softmax does not see), and all of q
// and k where a query sees one key alone.
bool gradient_vanishes(const arch::ParamSpec& spec, const program::Layout& layout);

// Per row of the model's table: the largest value of the gradient, by which its errors are judged. Where it vanishes that of
// the matrix which it is a part of (ParamSpec::fuse), else that of v.
std::vector<double> gradient_scales(const std::vector<at::Tensor>& gradients, const program::Layout& layout);

// Into `step`: the worst of each, after both have made the step from the same state. `of`: the twin's layout.
void compare_gradients(const WholeState& layout, const WholeState& twin, const std::vector<double>& scales,
                       const program::Layout& of, VerifyStep& step);
void compare_parameters(const WholeState& layout, const WholeState& twin, const std::vector<double>& scales,
                        const program::Layout& of, const Tolerances& tolerances, VerifyStep& step);

// Where layout and twin have made more than one step by themselves: sum |a - b| / sum |b| over all elements but those whose
// gradient vanishes; infinite where b is zero and a is not.
Distance distance_of(const WholeState& a, const WholeState& b, const program::Layout& layout);

}  // namespace lockstep::train
