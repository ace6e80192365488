// The calls that an action makes, planned.
#pragma once

#include <vector>

#include "lockstep/program/ledger.h"
#include "lockstep/program/program.h"

namespace lockstep::program {

// Sites and calls, as engine/ makes them over groups of ranks (groups.h; group_name() has their names in the ledger):
//   send_f stage s         send over pp, direct, of the rows [B S, D] of this rank in the compute precision, one for each
//   send_b stage s         microbatch; s is the stage here. recv_f, recv_b: the other side of it, which sends nothing
//   unshard blocks.3       all_gather over the domain's shard view, ring, of a unit in the compute precision
//   reduce_grad bucket k   all_reduce over its sum view, ring, fp32; with several shards unit by unit a reduce_scatter over
//                          its shard view, ring, fp32, or with reduce_precision bf16 an all_to_all, direct, bf16: summed in
//                          fp32 behind it
//   reduce_shard bucket k  all_reduce over its copies, ring, fp32, of one shard unit by unit
//   push bucket k          reduce to the server, direct, fp32
//   pull bucket k          broadcast from the server, direct, in the compute precision
//   tokens                 all_reduce over the ranks of other tokens, direct: 1 fp64
//   loss                   all_reduce over all ranks, direct: loss sum, tokens and the non-finite flag as 3 fp64
//   reduce_tied            all_reduce over the two that hold the unit, ring, fp32, of this rank's shard of it
//   reduce_partial         all_reduce, ring, fp32: over tp, then over the ranks of the same key/value heads, what
//                          partial_gradients() counts
//   norm                   all_reduce over the model group, with several shards over all ranks, direct: 1 fp64; parameter
//                          server: broadcast from the server, direct
// and those of sharded layers, tensor_calls.h.
// The communication of one action on `rank`, in order; nothing where it makes none or its group has one rank.
struct PlannedCall {
  LedgerKey key;
  CollectiveCall call;
  GroupRef group{};
  int group_rank = 0;  // of this rank in it
};
std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank, const Action& action);
// The same of each of several.
std::vector<std::vector<PlannedCall>> planned_calls(const Layout& layout, const Program& program, int rank,
                                                    const std::vector<Action>& actions);
// Of the rank's whole program.
std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank);

// Elements of REDUCE_PARTIAL: of parameters that every rank of the tp axis holds, and of those that `copies` ranks share.
struct PartialGradients {
  int64_t of_axis = 0;
  int64_t of_copies = 0;
  int copies = 1;
};
PartialGradients partial_gradients(const std::vector<arch::ParamSpec>& table);
// Of these, what the rank's shard holds: with several shards each is summed by its owner.
PartialGradients partial_gradients(const Layout& layout, int rank);

}  // namespace lockstep::program
