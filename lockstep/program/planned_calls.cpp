#include "lockstep/program/planned_calls.h"

#include <optional>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/program/tensor_calls.h"

namespace lockstep::program {
namespace {

struct Call {
  std::string site;
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kDirect;
  int64_t numel = 0;
  int64_t element_size = 8;
  int root = kServerRank;
};

class Planner {
 public:
  Planner(const Layout& layout, const Program& program, int rank)
      : layout_(layout), program_(program), rank_(rank), domain_(layout.dense_domain()) {}

  std::vector<PlannedCall> of(const Action& action) {
    if (action.layer >= 0) {
      for (const TensorCall& call : tensor_calls(layout_, action))
        over(mesh::Axis::kTp,
             {call.site, call.collective, tensor_algorithm(call.collective, call.numel * call.element_size, tensor_ranks()),
              call.numel, call.element_size});
      return std::exchange(calls_, {});
    }
    switch (action.kind) {
      case ActionKind::kSendForward:
      case ActionKind::kSendBackward:
        transfer(action, action.kind == ActionKind::kSendForward ? 1 : -1, Collective::kSend);
        break;
      case ActionKind::kRecvForward:
      case ActionKind::kRecvBackward:
        transfer(action, action.kind == ActionKind::kRecvForward ? -1 : 1, Collective::kRecv);
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
        over(domain_.sum, {cat("push bucket ", action.bucket), Collective::kReduce, Algorithm::kDirect, bucket(action).numel(), 4});
        break;
      case ActionKind::kPull:
        over(domain_.sum, {cat("pull bucket ", action.bucket), Collective::kBroadcast, Algorithm::kDirect, bucket(action).numel(),
                           layout_.element_size()});
        break;
      case ActionKind::kLoss:
        over(layout_.all_ranks(), {"loss", Collective::kAllReduce, Algorithm::kDirect, 3, 8});
        break;
      case ActionKind::kTokens:
        over(layout_.tokens(), {"tokens", Collective::kAllReduce, Algorithm::kDirect, 1, 8});
        break;
      case ActionKind::kReducePartial:
        reduce_partial();
        break;
      case ActionKind::kNorm:
        norm();
        break;
      default:
        break;
    }
    return std::exchange(calls_, {});
  }

 private:
  int tensor_ranks() const { return layout_.mesh.degree(mesh::Axis::kTp); }
  const Bucket& bucket(const Action& action) const { return program_.buckets.at(static_cast<size_t>(action.bucket)); }
  int64_t unit_numel(int layer) {
    if (!flat_) flat_ = layout_.flat_layout(rank_);
    for (const arch::FlatUnit& unit : flat_->units)
      if (unit.layer == layer) return unit.numel();
    throw InternalError(cat("layer ", layer, " owns no parameters"));
  }

  // The hidden states of this rank's rows, or their gradient, to or from a neighbour of the stage.
  void transfer(const Action& action, int neighbour, Collective collective) {
    const arch::TensorShard part = layout_.tensor_shard(rank_);
    const int64_t tokens = layout_.micro_batch * layout_.seq_len;
    const int64_t rows = part.sequence_parallel ? mesh::padded_range(tokens, part.size, part.rank).size() : tokens;
    const bool activations = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kRecvForward;
    const bool sends = collective == Collective::kSend;
    const int own = layout_.pipeline_rank(rank_), other = layout_.pipeline.rank_of(action.stage + neighbour);
    add(stage_link(sends ? own : other, sends ? other : own, activations),
        {.site = cat(collective_name(collective), activations ? "_f stage " : "_b stage ", action.stage),
         .collective = collective,
         .algorithm = Algorithm::kDirect,
         .numel = rows * layout_.model.hidden,
         .element_size = layout_.element_size(),
         .root = sends ? 1 : 0});
  }

  void reduce_tied(const Action& action) {
    add(tied_pair(layout_, rank_),
        {"reduce_tied", Collective::kAllReduce, Algorithm::kRing, unit_numel(action.unit) / layout_.shards(), 4});
  }

  void unshard(const Action& action) {
    if (layout_.shards() == 1) return;
    const std::string layer = arch::layer_spec(layout_.model, action.unit).name;
    over(domain_.shard,
         {"unshard " + layer, Collective::kAllGather, Algorithm::kRing, unit_numel(action.unit), layout_.element_size()});
  }

  void reduce_grad(const Action& action) {
    const std::string site = cat("reduce_grad bucket ", action.bucket);
    if (layout_.shards() == 1)
      return over(domain_.sum, {site, Collective::kAllReduce, Algorithm::kRing, bucket(action).numel(), 4});
    const bool bf16 = layout_.reduce_precision == config::Precision::kBf16;
    for (int unit : bucket(action).layers)
      over(domain_.shard,
           {site, bf16 ? Collective::kAllToAll : Collective::kReduceScatter,
            bf16 ? Algorithm::kDirect : Algorithm::kRing, unit_numel(unit), bf16 ? 2 : 4});
  }

  void reduce_shard(const Action& action) {
    for (int unit : bucket(action).layers)
      over(domain_.copies,
           {cat("reduce_shard bucket ", action.bucket), Collective::kAllReduce, Algorithm::kRing,
            unit_numel(unit) / layout_.shards(), 4});
  }

  void norm() {
    const Call sum{"norm", Collective::kAllReduce, Algorithm::kDirect, 1, 8};
    if (layout_.shards() > 1)
      over(layout_.all_ranks(), sum);
    else if (layout_.owns_optimizer(rank_))
      over(layout_.model_group(), sum);
    if (layout_.server_mode()) over(domain_.sum, {"norm", Collective::kBroadcast, Algorithm::kDirect, 1, 8});
  }

  // Gradients that all ranks of the axis share, then those of key/value heads that some of them share.
  void reduce_partial() {
    const PartialGradients partial = partial_gradients(layout_, rank_);
    over(mesh::Axis::kTp, {"reduce_partial", Collective::kAllReduce, Algorithm::kRing, partial.of_axis, 4});
    over(same_heads(layout_, partial.copies), {"reduce_partial", Collective::kAllReduce, Algorithm::kRing, partial.of_copies, 4});
  }

  void over(const mesh::View& view, const Call& call) { add(group_over(layout_, view), call); }
  void add(const GroupRef& group, const Call& call) {
    if (call.numel == 0 || group_size(layout_, group) == 1) return;
    PlannedCall planned;
    planned.key = {.site = call.site, .collective = call.collective, .axis = group_name(layout_, group), .algorithm = call.algorithm};
    planned.call = {.collective = call.collective,
                    .algorithm = call.algorithm,
                    .group = group_ranks(layout_, rank_, group),
                    .numel = call.numel,
                    .element_size = call.element_size,
                    .root = call.root};
    planned.group = group;
    planned.group_rank = group_rank(layout_, rank_, group);
    calls_.push_back(std::move(planned));
  }

  const Layout& layout_;
  const Program& program_;
  const int rank_;
  const Domain domain_;
  std::optional<arch::FlatLayout> flat_;
  std::vector<PlannedCall> calls_;
};

}  // namespace

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
  return Planner(layout, program, rank).of(action);
}

std::vector<std::vector<PlannedCall>> planned_calls(const Layout& layout, const Program& program, int rank,
                                                    const std::vector<Action>& actions) {
  Planner planner(layout, program, rank);
  std::vector<std::vector<PlannedCall>> calls;
  for (const Action& action : actions) calls.push_back(planner.of(action));
  return calls;
}

std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank) {
  Planner planner(layout, program, rank);
  std::vector<PlannedCall> calls;
  for (const Action& action : program.list(rank))
    for (PlannedCall& planned : planner.of(action)) calls.push_back(std::move(planned));
  return calls;
}

}  // namespace lockstep::program
