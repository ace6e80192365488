// The same layout under another condition: another network, another device, something that is slow.
#pragma once

#include <vector>

#include "lockstep/plan/plan_html.h"

namespace lockstep::plan {

// What a step is estimated from.
struct Setting {
  const program::Layout& layout;
  Cluster cluster{};
  Stack stack{};
  EstimateOptions options{};
};

// Each condition that means something here: those of usual_what_ifs(), the other order of ranks only where stages and data-parallel ranks are
// several, other devices in the same nodes, uneven experts only where there are any, FP8 only where the device has it. `estimate` is of the setting
// itself.
std::vector<WhatIf> what_ifs(const Setting& now, const StepEstimate& estimate);

// The largest change among the terms of two steps in words: "data parallel waits 41.0 ms less"; empty where none changes by a thousandth.
std::string cause_of(const StepEstimate& before, const StepEstimate& after);

// The same, behind what is missing where `after` does not fit the cluster's devices: "does not fit: needs 84.1 GiB of 80.0 GiB; ...".
std::string note_of(const StepEstimate& before, const StepEstimate& after, const Cluster& cluster);

// Without the entries of cluster.slow.
Cluster healthy(Cluster cluster);

}  // namespace lockstep::plan
