// What layers communicate over the axis tp, from their descriptions: the planned calls and the planner read it here, the layers of
// parallel/tensor make these calls, and a test asserts that both are the same.
#pragma once

#include <vector>

#include "lockstep/arch/layer_description.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::program {

// A layer as it is on the first rank of the axis tp. Its calls are those of all.
arch::LayerDescription describe_layer(const Layout& layout, const arch::LayerSpec& layer);

Collective collective_of(arch::LayerCall::What what);

// Of one F, RECOMPUTE, B, I or W of a layer, in the order of the forward pass; planned_calls.cpp adds the group, that of tp. Nothing where
// the axis has one rank.
// M = B S rows, padded to a multiple of tp:
//   without sequence parallelism, a block    F: all_reduce [M, D] after attention.out and after mlp.down
//                                            I: all_reduce [M, D] of dx of attention.qkv and of mlp's first linear
//   with it, a block    F: all_gather [M, D] before, reduce_scatter [M, D] after each branch
//                       I: the mirror; W: all_gather [M, D] of each first linear's x once more
//   the head            I: with it all_gather [M, D]; all_gather of 3 numbers a row; reduction of dx as above
//   full recomputation: those of F again but for the one after mlp.down, whose output nobody needs; selective: none
std::vector<PlannedCall> tensor_calls(const Layout& layout, const Action& action);
// The same of any phase: kEvaluate is an evaluation's F.
std::vector<PlannedCall> tensor_calls(const Layout& layout, int layer, arch::Phase phase);

// Such a call over `ranks`, padding included, from its sizes alone: for lists, and for whoever runs a layer by itself.
PlannedCall tensor_call(const CallId& id, Collective collective, int64_t numel, int64_t element_size, int ranks);

}  // namespace lockstep::program
