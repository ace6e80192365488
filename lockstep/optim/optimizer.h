// One update of parameters by an optimizer of arch/optimizer.h.
#pragma once

#include <vector>

#include "lockstep/arch/optimizer.h"
#include "lockstep/config/run_config.h"
#include "lockstep/optim/parameter.h"

namespace lockstep::optim {

// Updates values, slots and copies. Of a whole-matrix optimizer every parameter is a whole matrix, else any piece of one. Of
// `options` each optimizer reads its own; the rate is that of `point`.
void step(const arch::OptimizerSpec& optimizer, const std::vector<Parameter>& parameters, const config::OptimizerSection& options,
          const StepPoint& point);

// The same as a formula, of parameters with that `decay`. InternalError for a whole-matrix optimizer, which has none by element.
UpdateFormula update_formula(const arch::OptimizerSpec& optimizer, const config::OptimizerSection& options, const StepPoint& point,
                             bool decay);

}  // namespace lockstep::optim
