// The calls that an action makes, planned.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/program/ledger.h"
#include "lockstep/program/program.h"
#include "lockstep/program/summation.h"

namespace lockstep::program {

// Calls by the beginning of their texts (call.h), over groups of ranks (groups.h; group_name() has their names in the ledger):
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
//   gather_update blocks.3   send and recv over the domain's shard view and tp, direct, in the type of the iteration: a piece of a
//   scatter_update blocks.3  matrix to its owner and back (matrices.h)
// and those of sharded layers, tensor_calls.h.
// Sums are made as summation.h says. The engine executes these very objects; who counts bytes asks for CallOfRank.
struct PlannedCall {
  CallId id{};
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kDirect;
  SumOrder order = SumOrder::kNone;
  GroupRef group{};
  int root = kServerRank;    // of broadcast and reduce; the peer of send and recv: a group index
  int64_t numel = 0;         // of the full buffer, as CollectiveCall has it
  int64_t element_size = 8;  // on the wire
  int64_t bytes() const { return numel * element_size; }
};
// The communication of one action on `rank`, in order; nothing where it makes none or its group has one rank.
std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank, const Action& action);

// The same of all actions of a rank: planned once for all microbatches. What it is made with outlives it.
class CallTable {
 public:
  CallTable(const Layout& layout, const Program& program, int rank);
  ~CallTable();
  CallTable(const CallTable&) = delete;
  CallTable& operator=(const CallTable&) = delete;

  const std::vector<PlannedCall>& of(const Action& action);  // valid as long as the table
  // The one call of an action that makes at most one; null: none.
  const PlannedCall* only(const Action& action);

 private:
  class Planner;
  std::unique_ptr<Planner> planner_;
  std::map<std::array<int, 5>, std::vector<PlannedCall>> known_;
};

// A planned call as a rank takes part in it, for ledger and links.
struct CallOfRank {
  LedgerKey key{};
  CollectiveCall call{};
  int group_rank = 0;  // of this rank in it
};
CallOfRank call_of_rank(const Layout& layout, int rank, const PlannedCall& planned);
std::vector<CallOfRank> calls_of_rank(const Layout& layout, const Program& program, int rank, const Action& action);
// The same of each of several.
std::vector<std::vector<CallOfRank>> calls_of_rank(const Layout& layout, const Program& program, int rank,
                                                   const std::vector<Action>& actions);

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
