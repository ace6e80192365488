// Validation loss.
#pragma once

#include "lockstep/data/sampler.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/groups.h"

namespace lockstep::train {

// Mean loss per token over the first `samples` validation sequences (fewer where the data has fewer), shared out over the
// data-parallel ranks; every rank gets the same value. Collective over the data group.
double evaluate(engine::Executor& executor, engine::Groups& groups, const data::Sampler& validation, int64_t samples,
                at::Device device);

}  // namespace lockstep::train
