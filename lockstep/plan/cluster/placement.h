// Where the ranks of a layout stand on a cluster, and what of that a group of ranks is: how many of it share a domain, a node, a leaf.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "lockstep/mesh/mesh.h"
#include "lockstep/plan/cluster/cluster.h"
#include "lockstep/program/layout.h"

namespace lockstep::plan {

// The line in which ranks fill devices, the axis that varies fastest first.
enum class Order {
  kUsual,      // tp, cp, dp, pp: rank r on device r
  kPipelined,  // tp, cp, pp, dp: stages of one pipeline side by side
};
std::string_view order_name(Order order);

// Rank <-> device; arithmetic, nothing is kept for a rank.
class Placement {
 public:
  // ConfigError LS1143 where there are more ranks than devices.
  Placement(const Cluster& cluster, const mesh::Mesh& mesh, Order order = Order::kUsual);
  int device_of(int rank) const;
  int rank_of(int device) const;  // -1: none stands there
  int domain_of(int rank) const { return device_of(rank) / cluster_.domain; }
  int node_of(int rank) const { return device_of(rank) / cluster_.devices_per_node; }
  int leaf_of(int rank) const { return cluster_.leaf_of(node_of(rank)); }
  const Cluster& cluster() const { return cluster_; }
  const mesh::Mesh& mesh() const { return mesh_; }
  Order order() const { return order_; }

 private:
  const Cluster cluster_;
  const mesh::Mesh mesh_;
  const Order order_;
};

// What matters of a group of ranks to a collective's time.
struct GroupShape {
  int ranks = 1;
  int domains = 1;         // NVLink domains that it touches
  int nodes = 1;
  int leaves = 1;
  int largest_domain = 1;  // most of its ranks in one domain
  int per_node = 1;        // most of its ranks on one node
  int sharing = 1;         // groups of the same axes with ranks on that node that leave it over NICs: they share these
  double slow_devices = 1;  // share of full speed of the slowest node among its own (Slowness::nodes)
  double slow_nics = 1;     // likewise of its NICs (Slowness::nics)
  auto operator<=>(const GroupShape&) const = default;
};
// `view` as program::GroupRef and Layout have it; of `rank`'s group.
GroupShape shape_of(const Placement& placement, const mesh::Mesh& mesh, const mesh::View& view, int rank);
// Of two ranks that send to each other.
GroupShape shape_of_pair(const Placement& placement, int from, int to);

}  // namespace lockstep::plan
