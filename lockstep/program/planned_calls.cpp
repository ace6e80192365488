#include "lockstep/program/planned_calls.h"

#include <optional>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/matrices.h"
#include "lockstep/program/tensor_calls.h"

namespace lockstep::program {

class CallTable::Planner {
 public:
  Planner(const Layout& layout, const Program& program, int rank)
      : layout_(layout), program_(program), rank_(rank), domain_(layout.dense_domain()) {}

  std::vector<PlannedCall> of(const Action& action) {
    if (action.layer >= 0) {
      for (const TensorCall& call : tensor_calls(layout_, action))
        over(mesh::Axis::kTp, {.id = call.id,
                               .collective = call.collective,
                               .algorithm = call.algorithm,
                               .order = order_of(call.collective, call.algorithm),
                               .numel = call.numel,
                               .element_size = call.element_size});
      return std::exchange(calls_, {});
    }
    switch (action.kind) {
      case ActionKind::kSendForward:
        transfer(action, 1, Purpose::kSendForward);
        break;
      case ActionKind::kSendBackward:
        transfer(action, -1, Purpose::kSendBackward);
        break;
      case ActionKind::kRecvForward:
        transfer(action, -1, Purpose::kRecvForward);
        break;
      case ActionKind::kRecvBackward:
        transfer(action, 1, Purpose::kRecvBackward);
        break;
      case ActionKind::kReduceTied:
        reduce_tied(action);
        break;
      case ActionKind::kUnshard:
        unshard(action);
        break;
      case ActionKind::kReduceGrad:
        reduce_grad(action);
        break;
      case ActionKind::kReduceShard:
        reduce_shard(action);
        break;
      case ActionKind::kPush:
        over(domain_.sum, sum(call_of_bucket(Purpose::kPush, action.bucket), Summed::kServerGradients, bucket(action).numel()));
        break;
      case ActionKind::kPull:
        over(domain_.sum, {.id = call_of_bucket(Purpose::kPull, action.bucket),
                           .collective = Collective::kBroadcast,
                           .numel = bucket(action).numel(),
                           .element_size = layout_.element_size()});
        break;
      case ActionKind::kLoss:
        over(layout_.all_ranks(), sum(call_id(Purpose::kLoss), Summed::kLoss, 3));
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
  PlannedCall sum(const CallId& id, Summed what, int64_t numel) const {
    const Summation made = sum_over_ranks(layout_, what);
    return {.id = id,
            .collective = made.collective,
            .algorithm = made.algorithm,
            .order = made.order,
            .numel = numel,
            .element_size = made.element_size};
  }
  const Bucket& bucket(const Action& action) const { return program_.buckets.at(static_cast<size_t>(action.bucket)); }
  int64_t unit_numel(int layer) {
    if (!flat_) flat_ = layout_.flat_layout(rank_);
    for (const arch::FlatUnit& unit : flat_->units)
      if (unit.layer == layer) return unit.numel();
    throw InternalError(cat("layer ", layer, " owns no parameters"));
  }

  // The hidden states of this rank's rows, or their gradient, to or from a neighbour of the stage.
  void transfer(const Action& action, int neighbour, Purpose purpose) {
    const arch::TensorShard part = layout_.tensor_shard(rank_);
    const int64_t tokens = layout_.micro_batch * layout_.seq_len;
    const int64_t rows = part.sequence_parallel ? mesh::padded_range(tokens, part.size, part.rank).size() : tokens;
    const bool activations = purpose == Purpose::kSendForward || purpose == Purpose::kRecvForward;
    const bool sends = purpose == Purpose::kSendForward || purpose == Purpose::kSendBackward;
    const Collective collective = sends ? Collective::kSend : Collective::kRecv;
    const int own = layout_.pipeline_rank(rank_), other = layout_.pipeline.rank_of(action.stage + neighbour);
    add(stage_link(sends ? own : other, sends ? other : own, activations),
        {.id = call_of_stage(purpose, action.stage),
         .collective = collective,
         .root = sends ? 1 : 0,
         .numel = rows * layout_.model.hidden,
         .element_size = layout_.element_size()});
  }

  void reduce_tied(const Action& action) {
    add(tied_pair(layout_, rank_),
        sum(call_id(Purpose::kReduceTied), Summed::kTiedGradients, unit_numel(action.unit) / layout_.shards()));
  }

  void unshard(const Action& action) {
    if (layout_.shards() == 1) return;
    over(domain_.shard, {.id = call_of_layer(Purpose::kUnshard, arch::layer_spec(layout_.model, action.unit)),
                         .collective = Collective::kAllGather,
                         .algorithm = Algorithm::kRing,
                         .numel = unit_numel(action.unit),
                         .element_size = layout_.element_size()});
  }

  void reduce_grad(const Action& action) {
    const CallId id = call_of_bucket(Purpose::kReduceGrad, action.bucket);
    if (layout_.shards() == 1) return over(domain_.sum, sum(id, Summed::kGradients, bucket(action).numel()));
    for (int unit : bucket(action).layers) over(domain_.shard, sum(id, Summed::kGradients, unit_numel(unit)));
  }

  void reduce_shard(const Action& action) {
    const CallId id = call_of_bucket(Purpose::kReduceShard, action.bucket);
    for (int unit : bucket(action).layers)
      over(domain_.copies, sum(id, Summed::kGradientCopies, unit_numel(unit) / layout_.shards()));
  }

  // Pieces of matrices, to their owners or back.
  void move_matrices(const Action& action) {
    if (!matrices_) matrices_.emplace(layout_, rank_);
    const bool gathers = action.kind == ActionKind::kGatherUpdate;
    const CallId id = call_of_layer(gathers ? Purpose::kGatherUpdate : Purpose::kScatterUpdate, arch::layer_spec(layout_.model, action.unit));
    for (const MatrixMessage& message : gathers ? matrices_->gathered(action.unit) : matrices_->scattered(action.unit)) {
      const bool sends = message.from == matrices_->member();
      if (!sends && message.to != matrices_->member()) continue;
      add(matrices_->group(), {.id = id,
                               .collective = sends ? Collective::kSend : Collective::kRecv,
                               .root = sends ? message.to : message.from,
                               .numel = matrices_->of(action.unit)[message.matrix].pieces[message.piece].numel,
                               .element_size = matrices_->element_size()});
    }
  }

  void norm() {
    const PlannedCall square = sum(call_id(Purpose::kNorm), Summed::kNorm, 1);
    if (layout_.shards() > 1)
      over(layout_.all_ranks(), square);
    else if (layout_.owns_optimizer(rank_))
      over(layout_.model_group(), square);
    if (layout_.server_mode())
      over(domain_.sum, {.id = square.id, .collective = Collective::kBroadcast, .numel = 1, .element_size = square.element_size});
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
  const Domain domain_;
  std::optional<arch::FlatLayout> flat_;
  std::optional<MatrixPlan> matrices_;
  std::vector<PlannedCall> calls_;
};

PartialGradients partial_gradients(const std::vector<arch::ParamSpec>& table) {
  PartialGradients partial;
  for (const arch::ParamSpec& spec : table) {
    if (!spec.partial) continue;
    if (spec.cut == arch::TensorCut::kNone) {
      partial.of_axis += spec.local_numel();
    } else {
      partial.of_copies += spec.local_numel();
      partial.copies = spec.copies;
    }
  }
  return partial;
}

PartialGradients partial_gradients(const Layout& layout, int rank) {
  const std::vector<arch::ParamSpec> table = layout.param_table(rank);
  PartialGradients partial = partial_gradients(table);
  if (layout.shards() == 1) return partial;
  partial.of_axis = partial.of_copies = 0;
  const arch::FlatLayout flat = layout.flat_layout(rank);
  for (const arch::FlatUnit& unit : flat.units)
    for (const arch::ShardSlot& slot : arch::shard_slots(flat, unit, layout.shard(rank))) {
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
  const std::array<int, 5> key = {static_cast<int>(action.kind), action.stage, action.layer, action.bucket, action.unit};
  const auto [known, fresh] = known_.try_emplace(key);
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
          .group_rank = group_rank(layout, rank, planned.group)};
}

std::vector<CallOfRank> calls_of_rank(const Layout& layout, const Program& program, int rank, const Action& action) {
  return std::move(calls_of_rank(layout, program, rank, std::vector<Action>{action}).front());
}

std::vector<std::vector<CallOfRank>> calls_of_rank(const Layout& layout, const Program& program, int rank,
                                                   const std::vector<Action>& actions) {
  CallTable table(layout, program, rank);
  std::vector<std::vector<CallOfRank>> calls;
  for (const Action& action : actions) {
    std::vector<CallOfRank>& of_action = calls.emplace_back();
    for (const PlannedCall& planned : table.of(action)) of_action.push_back(call_of_rank(layout, rank, planned));
  }
  return calls;
}

}  // namespace lockstep::program
