// A block's branch of which somebody gives a forward function alone: both of its halves under one name, its description
// (arch/forward_kind.h) and the layer that runs (nn/autograd_branch.h).
#pragma once

#include "lockstep/arch/forward_kind.h"
#include "lockstep/nn/autograd_branch.h"

namespace lockstep::model {

// From then on a block may have a branch of that kind (arch::Branch::kind), trained with data parallelism, ZeRO, pipelines,
// recomputation and offload; a layout with tp, and one with cp or packed documents where the function is not by token, is refused by name.
// Before the first model is resolved. InternalError where there is a kind of that id.
void add_forward_block(const arch::ForwardKind& kind, nn::ForwardFunction function);

}  // namespace lockstep::model
