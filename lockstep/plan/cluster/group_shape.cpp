#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/plan/cluster/device_digits.h"
#include "lockstep/plan/cluster/group_rates.h"

namespace lockstep::plan {
namespace {

using mesh::Axis;

int narrow(int64_t value) { return static_cast<int>(value); }

// The ranks on a node; none where devices stand idle.
std::vector<int> ranks_on(const Placement& placement, int node) {
  const int devices = placement.cluster().devices_per_node;
  std::vector<int> ranks;
  for (int i = 0; i < devices; ++i)
    if (const int rank = placement.rank_of(node * devices + i); rank >= 0) ranks.push_back(rank);
  return ranks;
}

// The share of full speed of the slowest of the nodes on which `stands` is true of a rank.
template <typename Stands>
double slowest(const Placement& placement, const std::map<int, double>& shares, const Stands& stands) {
  double found = 1;
  for (const auto& [node, share] : shares) {
    if (share >= found || node >= placement.cluster().nodes) continue;
    const std::vector<int> ranks = ranks_on(placement, node);
    if (std::any_of(ranks.begin(), ranks.end(), stands)) found = share;
  }
  return found;
}

// The rank that is as far from `rank` on every axis as `to` is from `from`.
int moved(const mesh::Mesh& mesh, int rank, int from, int to) {
  mesh::PerAxis at = mesh.coordinates(rank);
  const mesh::PerAxis a = mesh.coordinates(from), b = mesh.coordinates(to);
  for (const Axis axis : mesh::kAxes) {
    const int degree = mesh.degree(axis);
    at[axis] = (at[axis] + b[axis] - a[axis] + degree) % degree;
  }
  return mesh.rank(at);
}

}  // namespace

GroupShape shape_of(const Placement& placement, const mesh::Mesh& mesh, const mesh::View& view, int rank) {
  const Cluster& cluster = placement.cluster();
  LOCKSTEP_CHECK(mesh == placement.mesh(), "a shape of another mesh than that of the placement");
  GroupShape shape{.ranks = mesh.degree(view)};
  if (shape.ranks == 1) return shape;
  const DeviceDigits digits(placement, mesh, view);
  const int first = mesh.member(rank, view, 0);
  const Spread domains = digits.spread(first, cluster.domain), nodes = digits.spread(first, cluster.devices_per_node);
  shape.domains = narrow(domains.units);
  shape.largest_domain = narrow(domains.most);
  shape.nodes = narrow(nodes.units);
  shape.per_node = narrow(nodes.most);
  if (cluster.network.nodes_per_leaf > 0)
    shape.leaves = narrow(digits.spread(first, int64_t{cluster.network.nodes_per_leaf} * cluster.devices_per_node).units);
  const auto leaves_unit = [&](int group) { return digits.spread(group, devices_of_unit(cluster)).units > 1; };
  if (leaves_unit(first)) {
    std::vector<int> groups;  // by their first members
    for (const int other : ranks_on(placement, narrow(nodes.where))) groups.push_back(mesh.member(other, view, 0));
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    shape.sharing = narrow(std::count_if(groups.begin(), groups.end(), leaves_unit));
  }
  const auto stands = [&](int other) { return mesh.member(other, view, 0) == first; };
  shape.slow_devices = slowest(placement, cluster.slow.nodes, stands);
  shape.slow_nics = slowest(placement, cluster.slow.nics, stands);
  return shape;
}

GroupShape shape_of_pair(const Placement& placement, int from, int to) {
  const Cluster& cluster = placement.cluster();
  GroupShape shape;
  if (from == to) return shape;
  const auto same = [&](auto of) { return of(from) == of(to); };
  const bool domain = same([&](int rank) { return placement.domain_of(rank); }), node = same([&](int rank) { return placement.node_of(rank); });
  const bool leaf = same([&](int rank) { return placement.leaf_of(rank); });
  shape = {.ranks = 2,
           .domains = domain ? 1 : 2,
           .nodes = node ? 1 : 2,
           .leaves = leaf ? 1 : 2,
           .largest_domain = domain ? 2 : 1,
           .per_node = node ? 2 : 1};
  const auto unit_of = [&](int rank) { return placement.device_of(rank) / devices_of_unit(cluster); };
  if (!same(unit_of)) {
    const std::vector<int> ranks = ranks_on(placement, placement.node_of(from));
    shape.sharing = narrow(std::count_if(ranks.begin(), ranks.end(), [&](int rank) {
      return unit_of(rank) != unit_of(moved(placement.mesh(), rank, from, to));
    }));
    // Under rails a leaf switch joins NICs of one index; where no domain forwards to the device of that index, the spines do.
    const auto rail_of = [&](int rank) { return cluster.rail_of(placement.device_of(rank)); };
    if (cluster.network.rails && !cluster.forwards() && !same(rail_of)) shape.leaves = 2;
  }
  const auto stands = [&](int rank) { return rank == from || rank == to; };
  shape.slow_devices = slowest(placement, cluster.slow.nodes, stands);
  shape.slow_nics = slowest(placement, cluster.slow.nics, stands);
  return shape;
}

}  // namespace lockstep::plan
