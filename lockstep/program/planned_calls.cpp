#include "lockstep/program/planned_calls.h"

#include <optional>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/matrices.h"

namespace lockstep::program {

// The calls by the beginning of their texts (call.h), over groups of ranks (groups.h; group_name() has their names in the ledger);
// domains are those of the unit or bucket:
//   send_f stage s         send over pp, direct, of the rows [B T, D] of this rank in the compute precision, one for each
//   send_b stage s         microbatch; s is the stage here. recv_f, recv_b: the other side of it, which sends nothing
//   unshard blocks.3       all_gather over the domain's shard view, ring, of a unit in the precision of its group's compute copy
//   reduce_grad bucket k   all_reduce over its sum view, ring, fp32; with several shards unit by unit a reduce_scatter over
//                          its shard view, ring, fp32, or with reduce_precision bf16 an all_to_all, direct, bf16: summed in
//                          fp32 behind it
//   reduce_shard bucket k  all_reduce over its copies, ring, fp32, of one shard unit by unit
//   push bucket k          reduce to the server, direct, fp32
//   pull bucket k          broadcast from the server, direct, in the precision of the group's compute copy
//   tokens                 all_reduce over the ranks of other tokens, direct: 1 fp64
//   loss                   all_reduce over all ranks, direct: loss sum, tokens and the non-finite flag as 3 fp64, and the loads of all
//                          blocks of experts (Layout::load_numbers)
//   reduce_tied            all_reduce over the two that hold the unit, ring, fp32, of this rank's shard of it
//   reduce_partial         all_reduce, ring, fp32: over tp, then over the ranks of the same key/value heads, what
//                          partial_gradients() counts
//   norm                   all_reduce over the model group, with several shards or scattered experts over all ranks, direct
//                          (Layout::norm_ranks): 1 fp64; parameter server: broadcast from the server, direct
//   gather_update blocks.3   send and recv over the domain's shard view and tp, of experts etp, direct, in the type of the iteration: a
//   scatter_update blocks.3  piece of a matrix to its owner and back (matrices.h)
// and those of sharded layers, tensor_calls().
class CallTable::Planner {
 public:
  Planner(const Layout& layout, const Program& program, int rank)
      : layout_(layout), program_(program), rank_(rank) {}

  std::vector<PlannedCall> of(const Action& action) {
    if (action.layer >= 0) {
      for (PlannedCall& call : tensor_calls(layout_, action)) add(GroupRef(call.group), std::move(call));
      return std::exchange(calls_, {});
    }
    if (is_transfer(action.kind)) transfer(action);
    switch (action.kind) {
      case ActionKind::kReduceTied:
        add(tied_pair(layout_, rank_), sum(call_id(Purpose::kReduceTied), Summed::kTiedGradients, unit(action.unit).part()));
        break;
      case ActionKind::kUnshard:
        unshard(action);
        break;
      case ActionKind::kReduceGrad:
        reduce_grad(action);
        break;
      case ActionKind::kReduceShard:
        for (const int each : bucket(action).units)
          over(domain(action).copies, sum(call_of_bucket(Purpose::kReduceShard, action.bucket), Summed::kGradientCopies, unit(each).part()));
        break;
      case ActionKind::kPush:
        over(domain(action).sum, sum(call_of_bucket(Purpose::kPush, action.bucket), Summed::kServerGradients, bucket(action).numel()));
        break;
      case ActionKind::kPull:
        over(domain(action).sum, {.id = call_of_bucket(Purpose::kPull, action.bucket),
                                  .collective = Collective::kBroadcast,
                                  .numel = bucket(action).numel(),
                                  .element_size = layout_.element_size(group_of(layout_, bucket(action)))});
        break;
      case ActionKind::kLoss:
        over(layout_.all_ranks(), sum(call_id(Purpose::kLoss), Summed::kLoss, 3 + layout_.load_numbers()));
        break;
      case ActionKind::kTokens:
        over(layout_.tokens(), sum(call_id(Purpose::kTokens), Summed::kTokens, 1));
        break;
      case ActionKind::kReducePartial:
        reduce_partial();
        break;
      case ActionKind::kNorm:
        norm();
        break;
      case ActionKind::kGatherUpdate:
      case ActionKind::kScatterUpdate:
        move_matrices(action);
        break;
      default:
        break;
    }
    return std::exchange(calls_, {});
  }

 private:
  PlannedCall sum(const CallId& id, Summed what, int64_t numel, arch::ParameterGroup of = arch::ParameterGroup::kDense) const {
    const Summation made = sum_over_ranks(layout_, what, of);
    return {.id = id,
            .collective = made.collective,
            .algorithm = made.algorithm,
            .order = made.order,
            .numel = numel,
            .element_size = made.element_size};
  }
  const Bucket& bucket(const Action& action) const { return program_.buckets.at(static_cast<size_t>(action.bucket)); }
  const arch::FlatUnit& unit(int id) {
    if (!flat_) flat_ = layout_.flat_layout(rank_);
    return flat_->units[flat_->index_of(id)];
  }
  // Of a unit, or of all units of a bucket.
  Domain domain(const Action& action) const {
    return action.unit >= 0 ? layout_.domain(layout_.group_of(action.unit)) : domain_of(layout_, bucket(action));
  }
  CallId id_of_unit(Purpose purpose, const Action& action) const {
    return call_of_layer(purpose, arch::layer_spec(layout_.model, layout_.layer_of(action.unit)));
  }

  // The hidden states of this rank's rows, or their gradient, to or from a neighbour of the stage.
  void transfer(const Action& action) {
    constexpr Purpose kTransfers[2][2] = {{Purpose::kRecvBackward, Purpose::kRecvForward}, {Purpose::kSendBackward, Purpose::kSendForward}};
    const auto [sends, forward, neighbour] = transfer_of(action);
    const arch::TensorShard part = layout_.tensor_shard(rank_);
    const int64_t tokens = layout_.micro_batch * layout_.tokens_here();
    const int64_t rows = part.sequence_parallel ? mesh::padded_range(tokens, part.size, part.rank).size() : tokens;
    const int own = layout_.pipeline_rank(rank_), other = layout_.pipeline.rank_of(neighbour);
    add(stage_link(sends ? own : other, sends ? other : own, forward),
        {.id = call_of_stage(kTransfers[sends][forward], action.stage),
         .collective = sends ? Collective::kSend : Collective::kRecv,
         .root = sends ? 1 : 0,
         .numel = rows * layout_.model.hidden,
         .element_size = layout_.element_size()});
  }

  void unshard(const Action& action) {
    if (layout_.shards_of_unit(action.unit) == 1) return;
    over(domain(action).shard, {.id = id_of_unit(Purpose::kUnshard, action),
                                .collective = Collective::kAllGather,
                                .algorithm = Algorithm::kRing,
                                .numel = unit(action.unit).numel(),
                                .element_size = layout_.element_size(layout_.group_of(action.unit))});
  }

  void reduce_grad(const Action& action) {
    const CallId id = call_of_bucket(Purpose::kReduceGrad, action.bucket);
    const Domain over_ranks = domain(action);
    const arch::ParameterGroup group = group_of(layout_, bucket(action));
    if (layout_.shards(group) == 1) return over(over_ranks.sum, sum(id, Summed::kGradients, bucket(action).numel(), group));
    for (const int each : bucket(action).units) over(over_ranks.shard, sum(id, Summed::kGradients, unit(each).numel(), group));
  }

  // Pieces of matrices, to their owners or back.
  void move_matrices(const Action& action) {
    if (!matrices_) matrices_.emplace(layout_, rank_);
    const bool gathers = action.kind == ActionKind::kGatherUpdate;
    const CallId id = id_of_unit(gathers ? Purpose::kGatherUpdate : Purpose::kScatterUpdate, action);
    for (const MatrixMessage& message : matrices_->messages(action.unit, gathers)) {
      const int here = matrices_->member(action.unit);
      const bool sends = message.from == here;
      if (!sends && message.to != here) continue;
      add(matrices_->group(action.unit), {.id = id,
                                          .collective = sends ? Collective::kSend : Collective::kRecv,
                                          .root = sends ? message.to : message.from,
                                          .numel = matrices_->of(action.unit)[message.matrix].pieces[message.piece].numel,
                                          .element_size = matrices_->element_size()});
    }
  }

  void norm() {
    const PlannedCall square = sum(call_id(Purpose::kNorm), Summed::kNorm, 1);
    if (layout_.owns_optimizer(rank_)) over(layout_.norm_ranks(), square);
    if (layout_.server_mode())
      over(layout_.dense_domain().sum, {.id = square.id, .collective = Collective::kBroadcast, .numel = 1, .element_size = square.element_size});
  }

  // Gradients that all ranks of the axis share, then those of key/value heads that some of them share.
  void reduce_partial() {
    const PartialGradients partial = partial_gradients(layout_, rank_);
    const CallId id = call_id(Purpose::kReducePartial);
    over(mesh::Axis::kTp, sum(id, Summed::kPartialGradients, partial.of_axis));
    over(same_heads(layout_, partial.copies), sum(id, Summed::kPartialGradients, partial.of_copies));
  }

  void over(const mesh::View& view, PlannedCall call) { add(group_over(layout_, view), std::move(call)); }
  void add(const GroupRef& group, PlannedCall call) {
    if (call.numel == 0 || group_size(layout_, group) == 1) return;
    call.group = group;
    calls_.push_back(std::move(call));
  }

  const Layout& layout_;
  const Program& program_;
  const int rank_;
  std::optional<arch::FlatLayout> flat_;
  std::optional<MatrixPlan> matrices_;
  std::vector<PlannedCall> calls_;
};

PartialGradients partial_gradients(const std::vector<arch::ParamSpec>& table) {
  PartialGradients partial;
  for (const arch::ParamSpec& spec : table) {
    if (!spec.partial) continue;
    const bool cut = spec.cut != arch::TensorCut::kNone;
    (cut ? partial.of_copies : partial.of_axis) += spec.local_numel();
    if (cut) partial.copies = spec.copies;
  }
  return partial;
}

PartialGradients partial_gradients(const Layout& layout, int rank) {
  const std::vector<arch::ParamSpec> table = layout.param_table(rank);
  PartialGradients partial{.copies = partial_gradients(table).copies};
  for (const arch::FlatUnit& unit : layout.flat_layout(table).units)
    for (const arch::ShardSlot& slot : arch::shard_slots(unit, layout.shard(rank, unit.group))) {
      const arch::ParamSpec& spec = table[static_cast<size_t>(slot.param)];
      if (!spec.partial) continue;
      (spec.cut == arch::TensorCut::kNone ? partial.of_axis : partial.of_copies) += slot.numel;
    }
  return partial;
}

std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank, const Action& action) {
  return CallTable(layout, program, rank).of(action);
}

CallTable::CallTable(const Layout& layout, const Program& program, int rank)
    : planner_(std::make_unique<Planner>(layout, program, rank)) {}
CallTable::~CallTable() = default;

const std::vector<PlannedCall>& CallTable::of(const Action& action) {
  const auto [known, fresh] = known_.try_emplace(without_microbatch(action));
  if (fresh) known->second = planner_->of(action);
  return known->second;
}

const PlannedCall* CallTable::only(const Action& action) {
  const std::vector<PlannedCall>& calls = of(action);
  LOCKSTEP_CHECK(calls.size() <= 1, action_name(action.kind), " makes ", calls.size(), " calls");
  return calls.empty() ? nullptr : &calls.front();
}

CallOfRank call_of_rank(const Layout& layout, int rank, const PlannedCall& planned) {
  return {.key = {.id = planned.id,
                  .collective = planned.collective,
                  .axis = group_name(layout, planned.group),
                  .algorithm = planned.algorithm},
          .call = {.collective = planned.collective,
                   .algorithm = planned.algorithm,
                   .group = group_ranks(layout, rank, planned.group),
                   .numel = planned.numel,
                   .element_size = planned.element_size,
                   .root = planned.root},
          .group = planned.group,
          .group_rank = group_rank(layout, rank, planned.group),
          .at_run_time = {.decided = planned.at_run_time, .most = planned.most * planned.element_size, .in_rounds = planned.in_rounds}};
}

std::vector<CallOfRank> calls_of_rank(const Layout& layout, const Program& program, int rank, const Action& action) {
  std::vector<CallOfRank> calls;
  for (const PlannedCall& planned : planned_calls(layout, program, rank, action)) calls.push_back(call_of_rank(layout, rank, planned));
  return calls;
}

}  // namespace lockstep::program
