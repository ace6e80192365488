// A planned call, made: collective, group, algorithm, root and id are those of the plan, tensors are bound to it here.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/engine/groups.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::engine {

struct CallTensors {
  at::Tensor input{};   // the one tensor of all_reduce, reduce, broadcast, send and recv
  at::Tensor output{};  // of all_gather, reduce_scatter and all_to_all
};

// `blocking` as comm::CallOptions has it. InternalError where the tensors are not what was planned; only transfers may be of
// another size, as in an evaluation.
comm::Work execute(Groups& groups, const program::PlannedCall& call, const CallTensors& tensors, bool blocking = false);

}  // namespace lockstep::engine
