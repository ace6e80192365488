// The calls that an action makes, planned.
#pragma once

#include <array>
#include <vector>

#include "lockstep/program/ledger.h"
#include "lockstep/program/program.h"

namespace lockstep::program {

// Sites and calls, as engine/ makes them over the data axes ("dp"; where both have several ranks "dp_replicate" and
// "dp_shard"), the tensor axis ("tp"), the ranks that share key/value heads ("kv"), and all ranks of a model replica ("dp"
// or "tp" or "pp" where that is all of them, else "replica"), all of one copy of the model ("tp" or "pp" where that is all
// of them, else "model"):
//   send_f stage s         send over pp, direct, of the rows [B S, D] of this rank in the compute precision, one for each
//   send_b stage s         microbatch; s is the stage here. recv_f, recv_b: the other side of it, which sends nothing
//   unshard blocks.3       all_gather over dp_shard, ring, of a unit in the compute precision
//   reduce_grad bucket k   all_reduce, ring, fp32; with several shards unit by unit a reduce_scatter over dp_shard, ring,
//                          fp32, or with reduce_precision bf16 an all_to_all, direct, bf16: summed in fp32 behind it
//   reduce_shard bucket k  all_reduce over dp_replicate, ring, fp32, of one shard unit by unit
//   push bucket k          reduce to the server, direct, fp32
//   pull bucket k          broadcast from the server, direct, in the compute precision
//   loss                   all_reduce over the replica, direct: loss sum, tokens and the non-finite flag as 3 fp64
//   reduce_tied            all_reduce over tied, ring, fp32, of this rank's shard of the unit that two stages hold
//   reduce_partial         all_reduce, ring, fp32: over tp, then over kv, what partial_gradients() counts
//   norm                   all_reduce over the ranks of one copy of the model, with several shards over the replica, direct: 1 fp64; parameter server: broadcast from the server, direct
// and those of sharded layers, tensor_calls.h.
// The communication of one action on `rank`, in order; nothing where it makes none or its group has one rank.
struct PlannedCall {
  LedgerKey key;
  CollectiveCall call;
  int group_rank = 0;
};
std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank, const Action& action);
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
inline constexpr std::array<mesh::Axis, 1> kShardAxis = {mesh::Axis::kDpShard};
inline constexpr std::array<mesh::Axis, 1> kReplicateAxis = {mesh::Axis::kDpReplicate};
// The name of the group over dp_replicate or dp_shard: "dp" where the other of the two has one rank.
const char* data_axis(const Layout& layout, mesh::Axis axis);
// The name of the group over kReplicaAxes.
const char* replica_axis(const Layout& layout);
// The same over kModelAxes.
const char* model_axis(const Layout& layout);

}  // namespace lockstep::program
