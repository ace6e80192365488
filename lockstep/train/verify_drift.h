// How far layout and twin drift apart where both are left alone, and how far they may.
//
// The bound is another twin's distance from the twin. That one adds up its microbatches in reverse order, and before every
// update each element of its gradient that is not zero is moved by the most that the comparison with the twin allows a
// reordered sum: the gradient tolerance times the largest value of the tensor, up or down. A layout that is right is closer
// in every element of every gradient, and what follows from that is the same dynamics for both; so the factor between the
// two distances is 1. The distance is a sum over all elements, not the largest one: Adam turns the few gradients that are
// rounding noise into full steps of either sign, wherever they are.
#pragma once

#include "lockstep/train/verify.h"
#include "lockstep/train/verify_twin.h"

namespace lockstep::train {

// The options of the second twin, from those of the first.
engine::ExecutorOptions reordered(engine::ExecutorOptions options, const Tolerances& tolerances);

// What `steps` updates may round on both sides beyond all that, relative to the state: adds to either bound.
double drift_rounding(int64_t steps);

// A line for each distance of the layout that is above the other one.
void judge_drift(const Drift& drift, const std::vector<arch::StateSlot>& slots, int64_t steps, std::vector<std::string>& failures);

}  // namespace lockstep::train
