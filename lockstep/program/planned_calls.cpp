#include "lockstep/program/planned_calls.h"

#include <algorithm>
#include <optional>
#include <span>
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
  Planner(const Layout& layout, const Program& program, int rank) : layout_(layout), program_(program), rank_(rank) {}

  std::vector<PlannedCall> of(const Action& action) {
    if (action.layer >= 0) {
      for (const TensorCall& call : tensor_calls(layout_, action))
        over(kTensorAxis, "tp",
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
        over_data({cat("push bucket ", action.bucket), Collective::kReduce, Algorithm::kDirect, bucket(action).numel(), 4});
        break;
      case ActionKind::kPull:
        over_data({cat("pull bucket ", action.bucket), Collective::kBroadcast, Algorithm::kDirect, bucket(action).numel(),
                   layout_.element_size()});
        break;
      case ActionKind::kLoss:
        over(kReplicaAxes, replica_axis(layout_), {"loss", Collective::kAllReduce, Algorithm::kDirect, 3, 8});
        break;
      case ActionKind::kTokens:
        over_data({"tokens", Collective::kAllReduce, Algorithm::kDirect, 1, 8});
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
    const int other = layout_.rank_at(rank_, action.stage + neighbour);
    add(sends ? std::vector<int>{rank_, other} : std::vector<int>{other, rank_}, sends ? 0 : 1, "pp",
        {.site = cat(collective_name(collective), activations ? "_f stage " : "_b stage ", action.stage),
         .collective = collective,
         .algorithm = Algorithm::kDirect,
         .numel = rows * layout_.model.hidden,
         .element_size = layout_.element_size(),
         .root = sends ? 1 : 0});
  }

  void reduce_tied(const Action& action) {
    const int peer = layout_.tied_peer(rank_);
    add({std::min(rank_, peer), std::max(rank_, peer)}, rank_ < peer ? 0 : 1, "tied",
        {"reduce_tied", Collective::kAllReduce, Algorithm::kRing, unit_numel(action.unit) / layout_.shards(), 4});
  }

  void unshard(const Action& action) {
    if (layout_.shards() == 1) return;
    const std::string layer = arch::layer_spec(layout_.model, action.unit).name;
    over(kShardAxis, data_axis(layout_, mesh::Axis::kDpShard),
         {"unshard " + layer, Collective::kAllGather, Algorithm::kRing, unit_numel(action.unit), layout_.element_size()});
  }

  void reduce_grad(const Action& action) {
    const std::string site = cat("reduce_grad bucket ", action.bucket);
    if (layout_.shards() == 1)
      return over_data({site, Collective::kAllReduce, Algorithm::kRing, bucket(action).numel(), 4});
    const bool bf16 = layout_.reduce_precision == config::Precision::kBf16;
    for (int unit : bucket(action).layers)
      over(kShardAxis, data_axis(layout_, mesh::Axis::kDpShard),
           {site, bf16 ? Collective::kAllToAll : Collective::kReduceScatter,
            bf16 ? Algorithm::kDirect : Algorithm::kRing, unit_numel(unit), bf16 ? 2 : 4});
  }

  void reduce_shard(const Action& action) {
    for (int unit : bucket(action).layers)
      over(kReplicateAxis, data_axis(layout_, mesh::Axis::kDpReplicate),
           {cat("reduce_shard bucket ", action.bucket), Collective::kAllReduce, Algorithm::kRing,
            unit_numel(unit) / layout_.shards(), 4});
  }

  void norm() {
    const Call sum{"norm", Collective::kAllReduce, Algorithm::kDirect, 1, 8};
    if (layout_.shards() > 1)
      over(kReplicaAxes, replica_axis(layout_), sum);
    else if (layout_.owns_optimizer(rank_))
      over(kModelAxes, model_axis(layout_), sum);
    if (layout_.server_mode()) over_data({"norm", Collective::kBroadcast, Algorithm::kDirect, 1, 8});
  }

  void over_data(const Call& call) { over(mesh::kDataAxes, "dp", call); }
  void over(std::span<const mesh::Axis> axes, const char* name, const Call& call) {
    add(layout_.mesh.group(rank_, axes), layout_.mesh.group_rank(rank_, axes), name, call);
  }

  // Gradients that all ranks of the axis share, then those of key/value heads that some of them share.
  void reduce_partial() {
    const PartialGradients partial = partial_gradients(layout_, rank_);
    const std::vector<int> ranks = layout_.mesh.group(rank_, kTensorAxis);
    const int here = layout_.mesh.group_rank(rank_, kTensorAxis);
    add(ranks, here, "tp", {"reduce_partial", Collective::kAllReduce, Algorithm::kRing, partial.of_axis, 4});
    const int copies = partial.copies, first = here / copies * copies;
    add({ranks.begin() + first, ranks.begin() + first + copies}, here - first, "kv",
        {"reduce_partial", Collective::kAllReduce, Algorithm::kRing, partial.of_copies, 4});
  }

  void add(std::vector<int> group, int group_rank, const char* axis, const Call& call) {
    if (group.size() == 1 || call.numel == 0) return;
    PlannedCall planned;
    planned.key = {.site = call.site, .collective = call.collective, .axis = axis, .algorithm = call.algorithm};
    planned.call = {.collective = call.collective,
                    .algorithm = call.algorithm,
                    .group = std::move(group),
                    .numel = call.numel,
                    .element_size = call.element_size,
                    .root = call.root};
    planned.group_rank = group_rank;
    calls_.push_back(std::move(planned));
  }

  const Layout& layout_;
  const Program& program_;
  const int rank_;
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

const char* data_axis(const Layout& layout, mesh::Axis axis) {
  LOCKSTEP_CHECK(axis == mesh::Axis::kDpReplicate || axis == mesh::Axis::kDpShard, mesh::axis_name(axis));
  const bool both = layout.mesh.degree(mesh::Axis::kDpReplicate) > 1 && layout.mesh.degree(mesh::Axis::kDpShard) > 1;
  if (!both) return "dp";
  return axis == mesh::Axis::kDpShard ? "dp_shard" : "dp_replicate";
}

const char* replica_axis(const Layout& layout) {
  if (layout.mesh.degree(kModelAxes) == 1) return "dp";
  return layout.mesh.degree(mesh::kDataAxes) == 1 ? model_axis(layout) : "replica";
}

const char* model_axis(const Layout& layout) {
  if (layout.mesh.degree(mesh::Axis::kPp) == 1) return "tp";
  return layout.mesh.degree(mesh::Axis::kTp) == 1 ? "pp" : "model";
}

std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank, const Action& action) {
  return Planner(layout, program, rank).of(action);
}

std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank) {
  Planner planner(layout, program, rank);
  std::vector<PlannedCall> calls;
  for (const Action& action : program.list(rank))
    for (PlannedCall& planned : planner.of(action)) calls.push_back(std::move(planned));
  return calls;
}

}  // namespace lockstep::program
