#include "lockstep/plan/cluster/placement.h"

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"

namespace lockstep::plan {
namespace {

using mesh::Axis;

struct Parts {
  int stage = 0, replica = 0, inner = 0;  // coordinates on pp, on dp_replicate x dp_shard, on cp x tp
};

int inner_ranks(const mesh::Mesh& mesh) { return mesh.degree(Axis::kCp | Axis::kTp); }
int replicas(const mesh::Mesh& mesh) { return mesh.degree(Axis::kDpReplicate | Axis::kDpShard); }

}  // namespace

std::string_view order_name(Order order) { return order == Order::kUsual ? "tp, cp, dp, pp" : "tp, cp, pp, dp"; }

Placement::Placement(const Cluster& cluster, const mesh::Mesh& mesh, Order order) : cluster_(cluster), mesh_(mesh), order_(order) {
  if (mesh.world_size() > cluster.devices())
    throw ConfigError({.code = "LS1143",
                       .what = cat("the layout has ", mesh.world_size(), " ranks, and the cluster ", cluster.devices(), " devices: ", describe(cluster)),
                       .way_out = "take more nodes, or a layout of fewer ranks"});
}

int Placement::device_of(int rank) const {
  LOCKSTEP_CHECK(rank >= 0 && rank < mesh_.world_size(), "rank ", rank, " of ", mesh_.world_size());
  if (order_ == Order::kUsual) return rank;
  const int inner = inner_ranks(mesh_), of_stage = inner * replicas(mesh_);
  const Parts at = {.stage = rank / of_stage, .replica = rank % of_stage / inner, .inner = rank % inner};
  return (at.replica * mesh_.degree(Axis::kPp) + at.stage) * inner + at.inner;
}

int Placement::rank_of(int device) const {
  LOCKSTEP_CHECK(device >= 0 && device < cluster_.devices(), "device ", device, " of ", cluster_.devices());
  if (device >= mesh_.world_size()) return -1;
  if (order_ == Order::kUsual) return device;
  const int inner = inner_ranks(mesh_), stages = mesh_.degree(Axis::kPp);
  const Parts at = {.stage = device / inner % stages, .replica = device / inner / stages, .inner = device % inner};
  return (at.stage * replicas(mesh_) + at.replica) * inner + at.inner;
}

}  // namespace lockstep::plan
