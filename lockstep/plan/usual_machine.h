// A machine to compare layouts of one job on where nobody says which it is: the times that order ways out of a shortage of memory.
#pragma once

#include "lockstep/config/run_config.h"
#include "lockstep/plan/time/calibrate.h"
#include "lockstep/program/layout.h"

namespace lockstep::plan {

// Of GPUs as many nodes of eight H100 as the ranks need. Of CPUs one host, a core with AVX2 for each rank. With the constants that are usual there;
// the same on every machine, so that an answer depends on the job alone.
Machine usual_machine(config::Device device, int ranks);
// Of a step of the layout there.
double usual_seconds(const program::Layout& layout, config::Device device);

}  // namespace lockstep::plan
