#include "lockstep/program/predict.h"

#include "lockstep/base/text.h"

namespace lockstep::program {
namespace {

struct Call {
  std::string site;
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kDirect;
  int64_t numel = 0;
  int64_t element_size = 8;
};

// The calls of one action; numel 0 = none.
Call call_of(const Action& action, const Layout& layout, const Program& program) {
  const auto bucket = [&] { return program.buckets.at(static_cast<size_t>(action.bucket)).numel(); };
  switch (action.kind) {
    case ActionKind::kReduceGrad:
      return {cat("reduce_grad bucket ", action.bucket), Collective::kAllReduce, Algorithm::kRing, bucket(), 4};
    case ActionKind::kPush:
      return {cat("push bucket ", action.bucket), Collective::kReduce, Algorithm::kDirect, bucket(), 4};
    case ActionKind::kPull:
      return {cat("pull bucket ", action.bucket), Collective::kBroadcast, Algorithm::kDirect, bucket(),
              layout.element_size()};
    case ActionKind::kLoss:
      return {"loss", Collective::kAllReduce, Algorithm::kDirect, 3, 8};
    case ActionKind::kNorm:
      if (layout.data_parallel == config::DataParallel::kRing) return {};
      return {"norm", Collective::kBroadcast, Algorithm::kDirect, 1, 8};
    default:
      return {};
  }
}

}  // namespace

std::optional<PlannedCall> planned_call(const Layout& layout, const Program& program, int rank, const Action& action) {
  const Call call = call_of(action, layout, program);
  if (call.numel == 0 || layout.mesh.degree(mesh::kDataAxes) == 1) return std::nullopt;
  PlannedCall planned;
  planned.key = {.site = call.site, .collective = call.collective, .axis = "dp", .algorithm = call.algorithm};
  planned.call = {.collective = call.collective,
                  .algorithm = call.algorithm,
                  .group = layout.mesh.group(rank, mesh::kDataAxes),
                  .numel = call.numel,
                  .element_size = call.element_size,
                  .root = kServerRank};
  planned.group_rank = layout.mesh.group_rank(rank, mesh::kDataAxes);
  return planned;
}

Ledger predict_ledger(const Layout& layout, const Program& program, int rank) {
  Ledger ledger;
  for (const Action& action : program.ranks.at(static_cast<size_t>(rank))) {
    if (const auto planned = planned_call(layout, program, rank, action)) {
      ledger.add(planned->key, payload(planned->call), predicted_sends(planned->call, planned->group_rank));
    }
  }
  return ledger;
}

double ring_link_bytes(double gradient_bytes, int ranks) {
  return 2.0 * (ranks - 1) / ranks * gradient_bytes;
}

double server_link_bytes(double gradient_bytes, int ranks) {
  return 2.0 * (ranks - 1) * gradient_bytes;
}

}  // namespace lockstep::program
