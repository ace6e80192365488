// What actions touch.
#pragma once

#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// F, B, I, W and RECOMPUTE.
bool computes(ActionKind kind);

// REDUCE_GRAD, SHARD_GRAD, REDUCE_SHARD, PUSH.
bool reduces(ActionKind kind);
// SEND_F, RECV_F, SEND_B, RECV_B: between the ranks of pp.
bool is_transfer(ActionKind kind);

// The units (layers that own them) whose parameters an action reads: F and RECOMPUTE, B and I of blocks and head their own
// and tied ones. W and the embedding's backward read none. The head's F counts although its B or I does all the work while
// training (nn/head.h): in an evaluation it reads, and what its B needs is so under way one action earlier.
std::vector<int> units_read(const Action& action, const std::vector<arch::ParamSpec>& table);
// The units whose gradients it adds to: B and W their own; B and I of the head (layer `head`) that of its projection, which
// may be a tied one.
std::vector<int> units_written(const Action& action, const std::vector<arch::ParamSpec>& table, int head);

// The layers whose backward adds to the bucket's gradients, ascending: its own, and further users of tied parameters.
std::vector<int> writers(const Bucket& bucket, const std::vector<arch::ParamSpec>& table);

}  // namespace lockstep::program
