#include "lockstep/plan/time/cluster_what_ifs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

Cluster cluster_of_leaves() {
  Cluster cluster;
  cluster.device.flops_bf16 = 1000;
  cluster.nodes = 8;
  cluster.devices_per_node = cluster.domain = cluster.nics_per_node = 8;
  cluster.network.nic = 50;
  cluster.network.nodes_per_leaf = 4;
  cluster.network.oversubscription = 2;
  cluster.price = 2;
  return cluster;
}

const Cluster& named(const std::vector<ClusterWhatIf>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &ClusterWhatIf::name);
  if (found == all.end()) throw std::out_of_range(name);
  return found->cluster;
}

TEST(ClusterWhatIfsTest, ChangeOnePart) {
  const std::vector<ClusterWhatIf> all = usual_what_ifs(cluster_of_leaves());
  EXPECT_EQ(named(all, "node 0 at 80 %").slow.nodes.at(0), 0.8);
  EXPECT_EQ(named(all, "NICs of node 0 at 50 %").slow.nics.at(0), 0.5);
  EXPECT_EQ(named(all, "16 NICs a node").nic_of_device(), 2 * cluster_of_leaves().nic_of_device());
  EXPECT_EQ(named(all, "oversubscription 1:1").network.oversubscription, 1);
  EXPECT_EQ(named(all, "oversubscription 4:1").network.oversubscription, 4);
  EXPECT_TRUE(named(all, "rails").network.rails);
  EXPECT_DOUBLE_EQ(named(all, "products -10 %").device.flops_bf16, 900);
  EXPECT_DOUBLE_EQ(named(all, "bandwidth of NICs +10 %").network.nic, 55);
  std::set<std::string> names;
  for (const ClusterWhatIf& one : all) EXPECT_TRUE(names.insert(one.name).second) << one.name;
  EXPECT_FALSE(names.contains("oversubscription 2:1")) << "it is so";
}

TEST(ClusterWhatIfsTest, OneNodeHasNoNetwork) {
  Cluster cluster = cluster_of_leaves();
  cluster.nodes = 1;
  for (const ClusterWhatIf& one : usual_what_ifs(cluster)) {
    EXPECT_THAT(one.name, Not(HasSubstr("NIC")));
    EXPECT_THAT(one.name, Not(HasSubstr("oversubscription")));
    EXPECT_THAT(one.name, Not(HasSubstr("between nodes")));
  }
}

TEST(ClusterWhatIfsTest, ATableOfSteps) {
  const Cluster cluster = cluster_of_leaves();
  const auto seconds = [](const Cluster& changed) { return 1000 / changed.device.flops_bf16 * (changed.slow.nodes.empty() ? 1 : 1 / 0.8); };
  const std::string table = what_if_table(cluster, seconds(cluster), try_what_ifs(cluster, seconds));
  EXPECT_THAT(table, HasSubstr("+25.0 %")) << "a step waits for node 0";
  EXPECT_THAT(table, HasSubstr("+11.1 %")) << "products -10 %";
  EXPECT_THAT(table, HasSubstr("0.03556")) << "64 devices for a second at 2 an hour";
}

}  // namespace
}  // namespace lockstep::plan
