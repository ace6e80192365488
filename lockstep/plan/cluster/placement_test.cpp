#include "lockstep/plan/cluster/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

using mesh::Axis;
using mesh::Mesh;
using mesh::PerAxis;
using mesh::View;

constexpr mesh::AxisSet kDp = Axis::kDpReplicate | Axis::kDpShard;

Mesh mesh_of(int pp, int dp, int cp, int tp) {
  PerAxis degrees = PerAxis::ones();
  degrees[Axis::kPp] = pp;
  degrees[Axis::kDpShard] = dp;
  degrees[Axis::kCp] = cp;
  degrees[Axis::kTp] = tp;
  return Mesh(degrees);
}

// Of one group: its units of so many devices, with its members in each.
std::map<int, int> units_of(const Placement& placement, const Mesh& mesh, const View& view, int rank, int unit) {
  std::map<int, int> found;
  for (const int member : mesh.group(rank, view)) ++found[placement.device_of(member) / unit];
  return found;
}
int most(const std::map<int, int>& units) {
  int found = 0;
  for (const auto& [unit, members] : units) found = std::max(found, members);
  return found;
}

// What shape_of says, counted rank by rank.
void expect_counted(const Placement& placement, const Mesh& mesh, const View& view, int rank, const std::string& what) {
  const Cluster& cluster = placement.cluster();
  const GroupShape shape = shape_of(placement, mesh, view, rank);
  const auto domains = units_of(placement, mesh, view, rank, cluster.domain), nodes = units_of(placement, mesh, view, rank, cluster.devices_per_node);
  std::set<int> leaves;
  for (const auto& [node, members] : nodes) leaves.insert(cluster.leaf_of(node));
  ASSERT_EQ(shape.ranks, mesh.degree(view)) << what;
  ASSERT_EQ(shape.domains, static_cast<int>(domains.size())) << what;
  ASSERT_EQ(shape.largest_domain, most(domains)) << what;
  ASSERT_EQ(shape.nodes, static_cast<int>(nodes.size())) << what;
  ASSERT_EQ(shape.per_node, most(nodes)) << what;
  ASSERT_EQ(shape.leaves, static_cast<int>(leaves.size())) << what;
  // On some node with most of its members so many groups leave.
  const int unit = std::max(cluster.domain, cluster.devices_per_node);
  const bool leaves_unit = units_of(placement, mesh, view, rank, unit).size() > 1;
  std::set<int> sharing;
  for (const auto& [node, members] : nodes) {
    if (members != shape.per_node) continue;
    std::set<int> groups;
    for (int device = node * cluster.devices_per_node; device < (node + 1) * cluster.devices_per_node; ++device) {
      const int other = placement.rank_of(device);
      if (other >= 0 && units_of(placement, mesh, view, other, unit).size() > 1) groups.insert(mesh.member(other, view, 0));
    }
    sharing.insert(static_cast<int>(groups.size()));
  }
  ASSERT_TRUE(leaves_unit ? sharing.contains(shape.sharing) : shape.sharing == 1) << what << ": " << shape.sharing;
}

TEST(PlacementTest, RanksAndDevicesAreInversesInBothOrders) {
  const Cluster cluster = parse_cluster("16 nodes of 8xh100");
  for (const Order order : {Order::kUsual, Order::kPipelined}) {
    const Placement placement(cluster, mesh_of(4, 3, 2, 4), order);
    std::set<int> devices;
    for (int rank = 0; rank < 96; ++rank) {
      EXPECT_EQ(placement.rank_of(placement.device_of(rank)), rank);
      devices.insert(placement.device_of(rank));
    }
    EXPECT_EQ(devices.size(), 96u);
    EXPECT_EQ(*devices.rbegin(), 95) << "the first devices are filled";
    EXPECT_EQ(placement.rank_of(96), -1);
    EXPECT_EQ(placement.rank_of(127), -1);
  }
}

TEST(PlacementTest, UsualOrderIsThatOfTheMeshAndPipelinedPutsStagesSideBySide) {
  const Cluster cluster = parse_cluster("4 nodes of 8xh100");
  const Mesh mesh = mesh_of(2, 4, 1, 4);  // rank = (pp x 4 + dp) x 4 + tp
  const Placement usual(cluster, mesh), pipelined(cluster, mesh, Order::kPipelined);
  EXPECT_EQ(usual.device_of(21), 21);
  EXPECT_EQ(pipelined.device_of(0), 0);
  EXPECT_EQ(pipelined.device_of(16), 4) << "the second stage of the first pipeline";
  EXPECT_EQ(pipelined.device_of(21), 13) << "pp 1, dp 1, tp 1: (1 x 2 + 1) x 4 + 1";
  EXPECT_EQ(usual.node_of(16), 2);
  EXPECT_EQ(pipelined.node_of(16), 0);
}

TEST(PlacementTest, MoreRanksThanDevicesAreRefused) {
  try {
    Placement(parse_cluster("8xh100"), mesh_of(2, 1, 1, 8));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().code, "LS1143");
    EXPECT_THAT(error.message().what, testing::HasSubstr("16 ranks"));
  }
}

TEST(GroupShapeTest, TheAxesOfACommonLayout) {
  const Cluster cluster = parse_cluster("64 nodes of 8xh100, 32 nodes a leaf");
  const Mesh mesh = mesh_of(4, 16, 1, 8);
  const Placement usual(cluster, mesh), pipelined(cluster, mesh, Order::kPipelined);
  const GroupShape tp = shape_of(usual, mesh, Axis::kTp, 100);
  EXPECT_EQ(tp, (GroupShape{.ranks = 8, .largest_domain = 8, .per_node = 8}));
  const GroupShape dp = shape_of(usual, mesh, kDp, 100);
  EXPECT_EQ(dp, (GroupShape{.ranks = 16, .domains = 16, .nodes = 16, .leaves = 1, .largest_domain = 1, .per_node = 1, .sharing = 8}));
  EXPECT_EQ(shape_of(pipelined, mesh, kDp, 100), (GroupShape{.ranks = 16, .domains = 16, .nodes = 16, .leaves = 2, .per_node = 1, .sharing = 8}));
  EXPECT_EQ(shape_of(usual, mesh, Axis::kPp, 0).leaves, 2);
  EXPECT_EQ(shape_of(pipelined, mesh, Axis::kPp, 0).leaves, 1) << "a pipeline stays below one leaf";
  EXPECT_EQ(shape_of(usual, mesh, Axis::kCp, 5), GroupShape{}) << "a group of one";
}

TEST(GroupShapeTest, AGroupOverWholeNodesHasTheirNicsForItself) {
  const Cluster cluster = parse_cluster("64 nodes of 8xh100");
  const Mesh wide = mesh_of(1, 32, 1, 16), narrow = mesh_of(1, 256, 1, 2);
  EXPECT_EQ(shape_of(Placement(cluster, wide), wide, Axis::kTp, 16),
            (GroupShape{.ranks = 16, .domains = 2, .nodes = 2, .largest_domain = 8, .per_node = 8, .sharing = 1}));
  const GroupShape dp = shape_of(Placement(cluster, narrow), narrow, kDp, 0);
  EXPECT_EQ(dp, (GroupShape{.ranks = 256, .domains = 64, .nodes = 64, .largest_domain = 4, .per_node = 4, .sharing = 2}));
}

TEST(GroupShapeTest, RacksAreDomainsOfManyNodes) {
  const Cluster cluster = parse_cluster("36 nodes of 4xgb200");
  const Mesh mesh = mesh_of(1, 18, 1, 8);
  const Placement placement(cluster, mesh);
  const GroupShape tp = shape_of(placement, mesh, Axis::kTp, 0);
  EXPECT_EQ(tp, (GroupShape{.ranks = 8, .domains = 1, .nodes = 2, .largest_domain = 8, .per_node = 4, .sharing = 1})) << "two nodes, no NIC";
  const GroupShape dp = shape_of(placement, mesh, kDp, 0);
  EXPECT_EQ(dp, (GroupShape{.ranks = 18, .domains = 2, .nodes = 18, .largest_domain = 9, .per_node = 1, .sharing = 4}));
}

TEST(GroupShapeTest, ExpertsAreFoldedOverTheRanksOfAStage) {
  const Cluster cluster = parse_cluster("16 nodes of 8xh100");
  const Mesh mesh = mesh_of(2, 16, 1, 4);  // 64 ranks a stage
  const mesh::Fold fold = mesh::expert_fold({.edp_replicate = 1, .edp_shard = 4, .ep = 16, .etp = 1});
  for (const Order order : {Order::kUsual, Order::kPipelined}) {
    const Placement placement(cluster, mesh, order);
    const GroupShape ep = shape_of(placement, mesh, {fold, Axis::kEp}, 70);
    EXPECT_EQ(ep.ranks, 16);
    EXPECT_EQ(ep.nodes, order == Order::kUsual ? 2 : 4) << "stages stand in between";
    EXPECT_EQ(ep.per_node, order == Order::kUsual ? 8 : 4);
    EXPECT_EQ(ep.sharing, order == Order::kUsual ? 1 : 2);
    EXPECT_EQ(shape_of(placement, mesh, {fold, Axis::kEdpShard}, 70).per_node, 1);
  }
}

TEST(GroupShapeTest, ArithmeticAgreesWithCountingOnAnyMesh) {
  std::mt19937 random(20);  // NOLINT: the same meshes each time
  const auto one_of = [&](std::initializer_list<int> values) { return values.begin()[random() % values.size()]; };
  for (int i = 0; i < 400; ++i) {
    const Mesh mesh = mesh_of(one_of({1, 2, 3, 4}), one_of({1, 2, 4, 6, 8, 16}), one_of({1, 2, 3}), one_of({1, 2, 3, 4, 6, 8, 16}));
    Cluster cluster = parse_cluster("9999 nodes of 8xh100");
    cluster.devices_per_node = one_of({4, 8, 16, 6});
    cluster.domain = cluster.devices_per_node * one_of({1, 1, 2, 9});
    if (random() % 4 == 0) cluster.domain = 2;
    cluster.network.nodes_per_leaf = one_of({0, 2, 3, 4});
    const Placement placement(cluster, mesh, random() % 2 == 0 ? Order::kUsual : Order::kPipelined);
    const int here = mesh.world_size() / mesh.degree(Axis::kPp), ep = one_of({1, 2, 3, 4, 8, 12}), etp = one_of({1, 2, 3});
    const int rank = static_cast<int>(random() % static_cast<unsigned>(mesh.world_size()));
    const std::string what = cat("case ", i, ", rank ", rank, ", nodes of ", cluster.devices_per_node, ", domain ", cluster.domain, ", last rank ",
                                 mesh.describe(mesh.world_size() - 1), ", ", order_name(placement.order()));
    for (const mesh::AxisSet axes : {mesh::AxisSet(Axis::kTp), mesh::AxisSet(Axis::kCp), kDp, mesh::AxisSet(Axis::kPp), Axis::kPp | Axis::kTp,
                                     kDp | Axis::kCp, kDp | Axis::kTp})
      expect_counted(placement, mesh, axes, rank, cat(what, ", ", mesh::view_name(axes)));
    if (here % (ep * etp) != 0) continue;
    const mesh::Fold fold = mesh::expert_fold({.edp_replicate = 1, .edp_shard = here / (ep * etp), .ep = ep, .etp = etp});
    for (const mesh::AxisSet axes : {mesh::AxisSet(Axis::kEp), Axis::kEp | Axis::kEtp, mesh::AxisSet(Axis::kEdpShard)})
      expect_counted(placement, mesh, {fold, axes}, rank, cat(what, ", ep ", ep, ", etp ", etp, ", ", mesh::view_name(axes)));
  }
}

TEST(GroupShapeTest, SlowNodesAndNicsCountForTheGroupsOnThem) {
  Cluster cluster = parse_cluster("8 nodes of 8xh100");
  cluster.slow.nodes[3] = 0.8;
  cluster.slow.nics[5] = 0.5;
  const Mesh mesh = mesh_of(2, 4, 1, 8);
  const Placement placement(cluster, mesh);
  EXPECT_EQ(shape_of(placement, mesh, Axis::kTp, 24).slow_devices, 0.8);
  EXPECT_EQ(shape_of(placement, mesh, Axis::kTp, 0).slow_devices, 1);
  EXPECT_EQ(shape_of(placement, mesh, kDp, 0).slow_devices, 0.8);
  EXPECT_EQ(shape_of(placement, mesh, kDp, 0).slow_nics, 1);
  EXPECT_EQ(shape_of(placement, mesh, kDp, 32).slow_nics, 0.5) << "the second stage stands on nodes 4 to 7";
  EXPECT_EQ(shape_of_pair(placement, 0, 32).slow_nics, 1);
  EXPECT_EQ(shape_of_pair(placement, 8, 40).slow_nics, 0.5);
}

TEST(GroupShapeTest, PairsShareTheNicsWithThoseThatSendBesideThem) {
  const Cluster cluster = parse_cluster("64 nodes of 8xh100, 32 nodes a leaf");
  const Mesh mesh = mesh_of(4, 16, 1, 8);
  const Placement usual(cluster, mesh), pipelined(cluster, mesh, Order::kPipelined);
  EXPECT_EQ(shape_of_pair(usual, 0, 128), (GroupShape{.ranks = 2, .domains = 2, .nodes = 2, .leaves = 1, .per_node = 1, .sharing = 8}));
  EXPECT_EQ(shape_of_pair(usual, 128, 256).leaves, 2);
  EXPECT_EQ(shape_of_pair(pipelined, 128, 256).leaves, 1);
  EXPECT_EQ(shape_of_pair(usual, 0, 1), (GroupShape{.ranks = 2, .largest_domain = 2, .per_node = 2}));
  const Mesh half = mesh_of(4, 2, 1, 4);  // two stages of a pipeline on a node: half of its ranks send on
  EXPECT_EQ(shape_of_pair(Placement(cluster, half, Order::kPipelined), 8, 16).sharing, 4);
  EXPECT_EQ(shape_of_pair(Placement(cluster, half, Order::kPipelined), 0, 8).sharing, 1) << "inside the node";
}

TEST(GroupShapeTest, RailsJoinNeighboursByIndex) {
  const Cluster cluster = parse_cluster("4 nodes of 8xl40s, 8 NICs, rails");
  const Mesh mesh = mesh_of(1, 32, 1, 1);
  EXPECT_EQ(shape_of_pair(Placement(cluster, mesh), 0, 8).leaves, 1);
  EXPECT_EQ(shape_of_pair(Placement(cluster, mesh), 0, 9).leaves, 2) << "no domain forwards to the device beside the right NIC";
  const Cluster switched = parse_cluster("4 nodes of 8xh100, rails");
  EXPECT_EQ(shape_of_pair(Placement(switched, mesh), 0, 9).leaves, 1);
}

}  // namespace
}  // namespace lockstep::plan
