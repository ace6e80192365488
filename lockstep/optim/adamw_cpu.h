// AdamW on the CPU in one pass over memory: the step costs what reading and writing the state costs.
#pragma once

#include "lockstep/optim/adamw.h"

namespace lockstep::optim {

// As adamw_step.
void adamw_step_cpu(const std::vector<Parameter>& parameters, const AdamWOptions& options, const StepPoint& point);

}  // namespace lockstep::optim
