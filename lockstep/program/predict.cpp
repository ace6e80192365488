#include "lockstep/program/predict.h"

#include <span>

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
      return std::move(calls_);
    }
    switch (action.kind) {
      case ActionKind::kReduceGrad:
        over_data({cat("reduce_grad bucket ", action.bucket), Collective::kAllReduce, Algorithm::kRing,
                   bucket(action), 4});
        break;
      case ActionKind::kPush:
        over_data({cat("push bucket ", action.bucket), Collective::kReduce, Algorithm::kDirect, bucket(action), 4});
        break;
      case ActionKind::kPull:
        over_data({cat("pull bucket ", action.bucket), Collective::kBroadcast, Algorithm::kDirect, bucket(action),
                   layout_.element_size()});
        break;
      case ActionKind::kLoss:
        over(kReplicaAxes, replica_axis(layout_), {"loss", Collective::kAllReduce, Algorithm::kDirect, 3, 8});
        break;
      case ActionKind::kReducePartial:
        reduce_partial();
        break;
      case ActionKind::kNorm:
        if (layout_.owns_optimizer(rank_))
          over(kTensorAxis, "tp", {"norm", Collective::kAllReduce, Algorithm::kDirect, 1, 8});
        if (layout_.server_mode()) over_data({"norm", Collective::kBroadcast, Algorithm::kDirect, 1, 8});
        break;
      default:
        break;
    }
    return std::move(calls_);
  }

 private:
  int tensor_ranks() const { return layout_.mesh.degree(mesh::Axis::kTp); }
  int64_t bucket(const Action& action) const { return program_.buckets.at(static_cast<size_t>(action.bucket)).numel(); }

  void over_data(const Call& call) { over(mesh::kDataAxes, "dp", call); }
  void over(std::span<const mesh::Axis> axes, const char* name, const Call& call) {
    add(layout_.mesh.group(rank_, axes), layout_.mesh.group_rank(rank_, axes), name, call);
  }

  // Gradients that all ranks of the axis share, then those of key/value heads that some of them share.
  void reduce_partial() {
    const PartialGradients partial = partial_gradients(layout_.param_table(rank_));
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
                    .root = kServerRank};
    planned.group_rank = group_rank;
    calls_.push_back(std::move(planned));
  }

  const Layout& layout_;
  const Program& program_;
  const int rank_;
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

const char* replica_axis(const Layout& layout) {
  if (layout.mesh.degree(mesh::Axis::kTp) == 1) return "dp";
  return layout.mesh.degree(mesh::kDataAxes) == 1 ? "tp" : "replica";
}

std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank, const Action& action) {
  return Planner(layout, program, rank).of(action);
}

Ledger predict_ledger(const Layout& layout, const Program& program, int rank) {
  Ledger ledger;
  for (const Action& action : program.ranks.at(static_cast<size_t>(rank)))
    for (const PlannedCall& planned : planned_calls(layout, program, rank, action))
      ledger.add(planned.key, payload(planned.call), predicted_sends(planned.call, planned.group_rank));
  return ledger;
}

double ring_link_bytes(double gradient_bytes, int ranks) {
  return 2.0 * (ranks - 1) / ranks * gradient_bytes;
}

double server_link_bytes(double gradient_bytes, int ranks) {
  return 2.0 * (ranks - 1) * gradient_bytes;
}

}  // namespace lockstep::program
