// The predicted ledger: what a rank puts on the links in one step, found by walking its program.
#pragma once

#include <vector>

#include "lockstep/program/ledger.h"
#include "lockstep/program/program.h"

namespace lockstep::program {

// Sites and calls, as engine/ makes them over the data axes ("dp"), the tensor axis ("tp"), the ranks that share key/value
// heads ("kv"), and all ranks of a model replica ("dp" or "tp" where that is all of them, else "replica"):
//   reduce_grad bucket k   all_reduce, ring, fp32
//   push bucket k          reduce to the server, direct, fp32
//   pull bucket k          broadcast from the server, direct, in the compute precision
//   loss                   all_reduce over the replica, direct: loss sum, tokens and the non-finite flag as 3 fp64
//   reduce_partial         all_reduce, ring, fp32: over tp, then over kv, what partial_gradients() counts
//   norm                   all_reduce over tp, direct: 1 fp64; parameter server: broadcast from the server, direct
// and those of sharded layers, tensor_calls.h.
// The communication of one action on `rank`, in order; nothing where it makes none or its group has one rank.
struct PlannedCall {
  LedgerKey key;
  CollectiveCall call;
  int group_rank = 0;
};
std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank, const Action& action);
// All of them. Empty for one rank.
Ledger predict_ledger(const Layout& layout, const Program& program, int rank);

// Elements of REDUCE_PARTIAL: of parameters that every rank of the tp axis holds, and of those that `copies` ranks share.
struct PartialGradients {
  int64_t of_axis = 0;
  int64_t of_copies = 0;
  int copies = 1;
};
PartialGradients partial_gradients(const std::vector<arch::ParamSpec>& table);
// The name of the group over kReplicaAxes.
const char* replica_axis(const Layout& layout);

// What the literature says of one synchronisation of S bytes of gradients over n ranks, in bytes.
// Ring (Patarasuk & Yuan 2009): every link carries 2 (n - 1) / n S. Parameter server (Li et al. 2014): the server's
// link carries (n - 1) S of gradients in and (n - 1) S of parameters out.
double ring_link_bytes(double gradient_bytes, int ranks);
double server_link_bytes(double gradient_bytes, int ranks);

}  // namespace lockstep::program
