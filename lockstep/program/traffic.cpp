#include "lockstep/program/traffic.h"

#include <initializer_list>

#include "lockstep/base/check.h"
#include "lockstep/program/predict.h"

namespace lockstep::program {
namespace {

// What the rank sends for actions of these kinds.
int64_t sent_for(const Program& program, const Layout& layout, int rank, std::initializer_list<ActionKind> kinds) {
  Program part{.ranks = std::vector<std::vector<Action>>(program.ranks.size()), .buckets = program.buckets};
  for (const Action& action : program.ranks.at(static_cast<size_t>(rank)))
    for (ActionKind kind : kinds)
      if (action.kind == kind) part.ranks[static_cast<size_t>(rank)].push_back(action);
  return predict_ledger(layout, part, rank).sent_total();
}

// Of one rank: with tp a part of the model's.
double parameters(const Layout& layout) {
  int64_t here = 0;
  for (const arch::ParamSpec& spec : layout.param_table(0)) here += spec.local_numel();
  return static_cast<double>(here);
}

int64_t gathers(const Layout& layout) {
  if (layout.zero < 3) return 1;
  const int64_t microbatches = layout.num_microbatches();
  if (!layout.reshard_after_forward) return layout.reshard_after_microbatch ? microbatches : 1;
  return layout.reshard_after_microbatch ? 2 * microbatches : microbatches + 1;
}

}  // namespace

ReductionTraffic reduction_traffic(const Layout& layout) {
  const int n = layout.mesh.degree(mesh::kDataAxes);
  Layout ring = layout, server = layout;
  ring.zero = server.zero = 0;
  ring.offload = server.offload = {};
  ring.data_parallel = config::DataParallel::kRing;
  server.data_parallel = config::DataParallel::kParameterServer;
  const auto sent = [](const Layout& kind, const Program& program, int rank) {
    return sent_for(program, kind, rank, {ActionKind::kReduceGrad, ActionKind::kPush, ActionKind::kPull});
  };
  const Program pushes = build_program(server);
  // Every link of the ring carries what its rank sends; the workers of a server are all alike.
  const int worker = n > 1 ? layout.mesh.group(0, mesh::kDataAxes)[1] : 0;
  return {.ring_link = sent(ring, build_program(ring), 0),
          .server_link = (n - 1) * sent(server, pushes, worker) + sent(server, pushes, 0)};
}

std::vector<StageTraffic> sharding_traffic(const Layout& layout) {
  LOCKSTEP_CHECK(layout.shards() > 1, "one shard: nothing is gathered");
  const double share = (layout.shards() - 1.0) / layout.shards() * parameters(layout);
  const double wire = layout.reduce_precision == config::Precision::kBf16 ? 2 : 4;
  std::vector<StageTraffic> stages;
  for (int zero : {1, 2, 3}) {
    Layout staged = layout;
    staged.zero = zero;
    staged.offload.parameters = layout.offload.parameters && zero == 3;
    StageTraffic stage{.zero = zero};
    stage.gathers = gathers(staged);
    stage.reduces = staged.transient_gradients() ? layout.num_microbatches() : 1;
    stage.formula_bytes = share * (static_cast<double>(stage.gathers * layout.element_size()) +
                                   static_cast<double>(stage.reduces) * wire);
    stage.predicted_bytes = sent_for(build_program(staged), staged, 0, {ActionKind::kUnshard, ActionKind::kReduceGrad});
    stages.push_back(stage);
  }
  return stages;
}

ReplicaTraffic replica_traffic(const Program& program, const Layout& layout) {
  const double replicas = layout.mesh.degree(mesh::Axis::kDpReplicate);
  return {.formula_bytes = 2 * (replicas - 1) / replicas * 4 * parameters(layout) / layout.shards(),
          .predicted_bytes = sent_for(program, layout, 0, {ActionKind::kReduceShard})};
}

}  // namespace lockstep::program
