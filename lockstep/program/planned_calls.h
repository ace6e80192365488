// The calls that an action makes, planned.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/arch/layer_description.h"
#include "lockstep/program/ledger.h"
#include "lockstep/program/program.h"
#include "lockstep/program/summation.h"

namespace lockstep::program {

// What each kind of action calls stands in planned_calls.cpp; sums are made as summation.h says. The engine executes these very
// objects; who counts bytes asks for CallOfRank.
struct PlannedCall {
  CallId id{};
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kDirect;
  SumOrder order = SumOrder::kNone;
  GroupRef group{};
  int root = kServerRank;    // of broadcast and reduce; the peer of send and recv: a group index
  int64_t numel = 0;         // of the full buffer, as CollectiveCall has it
  int64_t element_size = 8;  // on the wire
  bool at_run_time = false;  // how much each rank sends to each other is known when it is made: numel is what balanced routing makes
  int64_t most = 0;          // of such a call: numel at most
  bool in_rounds = false;    // and it may be made several times in its place
  int64_t bytes() const { return numel * element_size; }
};
// The communication of one action on `rank`, in order; nothing where it makes none or its group has one rank.
std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank, const Action& action);

// The same of all actions of a rank: planned once for all microbatches. What it is made with outlives it.
class CallTable {
 public:
  CallTable(const Layout& layout, const Program& program, int rank);
  ~CallTable();

  const std::vector<PlannedCall>& of(const Action& action);  // valid as long as the table
  // The one call of an action that makes at most one; null: none.
  const PlannedCall* only(const Action& action);

 private:
  class Planner;
  std::unique_ptr<Planner> planner_;
  std::map<Action, std::vector<PlannedCall>> known_;
};

// A planned call as a rank takes part in it, for ledger and links.
struct CallOfRank {
  LedgerKey key{};
  CollectiveCall call{};
  GroupRef group{};    // that of the call
  int group_rank = 0;  // of this rank in it
  AtRunTime at_run_time{};
};
CallOfRank call_of_rank(const Layout& layout, int rank, const PlannedCall& planned);
std::vector<CallOfRank> calls_of_rank(const Layout& layout, const Program& program, int rank, const Action& action);

// Elements of REDUCE_PARTIAL: of parameters that every rank of the tp axis holds, and of those that `copies` ranks share.
struct PartialGradients {
  int64_t of_axis = 0;
  int64_t of_copies = 0;
  int copies = 1;
};
PartialGradients partial_gradients(const std::vector<arch::ParamSpec>& table);
// Of these, what the rank's shard holds: with several shards each is summed by its owner.
PartialGradients partial_gradients(const Layout& layout, int rank);

// What layers communicate over the axis tp, over the ranks of their experts and over those of cp, from their descriptions
// (tensor_calls.cpp): the planned calls and the planner read it here, the layers of parallel/tensor, parallel/expert and parallel/context
// make these calls, and a test asserts that both are the same.

// Of one F, RECOMPUTE, B, I or W of a layer, or of a divided one those of the action's part, of DISPATCH_* and COMBINE_* what these move;
// in the order of the forward pass, each with its group: tp, or with arch::CallGroup::kExperts Layout::expert_ranks() on their channel, with those of cp Channel::kContext. Nothing over a group of one rank.
// M = B T rows of the T tokens of each sequence that are here, padded to a multiple of tp:
//   without sequence parallelism, a block    F: all_reduce [M, D] after attention.out and after mlp.down
//                                            I: all_reduce [M, D] of dx of attention.qkv and of mlp's first linear
//   with it, a block    F: all_gather [M, D] before, reduce_scatter [M, D] after each branch
//                       I: the mirror; W: all_gather [M, D] of each first linear's x once more
//   the head            I: with it all_gather [M, D]; all_gather of 3 numbers a row; reduction of dx as above
//   over cp, between the linears of attention, KV and H heads of widths K and V, n = cp, e bytes an element:
//     ring        F: n - 1 shift [M KV (K + V)] e; I: the same again, and n shift of the gradients, 4 bytes
//                 latent attention: [M (C + R)] in both; a window that reaches h ranks: h for n - 1, h forward again, n of the gradients, or none;
//                 a window W no longer than a piece: for each piece one of B (W - 1) tokens, its gradient the other way round
//     all_gather  F: all_gather [n M KV (K + V)] e; I: the same again, and reduce_scatter of the gradients, 4 bytes
//     all_to_all  F: all_to_all [n M (qh K + kvh (K + V))] e, qh and kvh the most heads that a rank gets; [n M qh V] e back; I: the mirror
//     2d          all_to_all over the inner ranks around a ring of the outer ones with these heads and the tokens of all inner ranks
//   a state space over cp, p pieces of a rank, convolution W, states P x N of H heads    F: all_gather "columns" [n p B (W - 1) C] e, "states"
//                 [n p B H (P N + 1)] 4 bytes; I: "states" [n p B H P N] 4 bytes, "columns" 4 bytes; over tp, where that cuts a group of its
//                 norm, all_reduce [M] 4 bytes in F and I
//   full recomputation: those of F again but for the one after mlp.down, whose output nobody needs; selective: none
std::vector<PlannedCall> tensor_calls(const Layout& layout, const Action& action);
// The same of any phase: kEvaluate is an evaluation's F.
std::vector<PlannedCall> tensor_calls(const Layout& layout, int layer, arch::Phase phase);
// The same from a description made once for all phases: of a divided layer the calls of `part`, -1: of all.
std::vector<PlannedCall> tensor_calls(const Layout& layout, const arch::LayerSpec& layer, const arch::LayerDescription& description, arch::Phase phase, int part = -1);
// What they are read from.
arch::LayerDescription description_of_calls(const Layout& layout, const arch::LayerSpec& layer);
// Which phase of its layer an action is; none where it is not of one.
std::optional<arch::Phase> phase_of(const Layout& layout, const Action& action);

// Such a call over `ranks`, padding included, from its sizes alone: for lists, and for whoever runs a layer by itself.
PlannedCall tensor_call(const CallId& id, Collective collective, int64_t numel, int64_t element_size, int ranks);

}  // namespace lockstep::program
