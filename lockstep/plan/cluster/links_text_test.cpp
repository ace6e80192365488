// What belongs where comes out of counted bytes: a 100 B model on nodes of 8, by where its axes stand.
#include "lockstep/plan/cluster/links_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/test_traffic.h"

namespace lockstep::plan {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr double kParameters = 100e9;  // of gpt-100b, within 0.1 %

struct Degrees {
  int tp = 8, pp = 1, dp = 1;
  int64_t microbatches = 2;
};
program::Layout gpt_100b(const Degrees& of) {
  const SmallRun run{.preset = "gpt-100b", .ranks = of.tp * of.pp * of.dp, .micro_batch = 1, .global_batch = of.dp * of.microbatches, .seq_len = 2048};
  return small_layout(run, [&](config::RunConfig& config) {
    config.train.precision = config.parallel.reduce_precision = config::Precision::kBf16;
    config.parallel.tp = of.tp;
    config.parallel.pp = of.pp;
    config.parallel.zero = 1;
  });
}
Traffic traffic_of_100b(const Degrees& of, const SmallCluster& cluster, Order order = Order::kUsual) {
  const program::Layout layout = gpt_100b(of);
  return traffic_of(program::judged_steps(layout), Placement(cluster_of(cluster), layout.mesh, order));
}
SmallCluster nodes_of_8(int nodes, int nodes_per_leaf = 0) {
  return {.nodes = nodes, .devices_per_node = 8, .domain = 8, .nodes_per_leaf = nodes_per_leaf};
}

// 2 bytes of each gradient to its owner and of each parameter back, by each of n ranks of the data axis (n - 1) / n of them.
double synchronised(int dp) { return 2 * 2 * kParameters * (dp - 1); }

TEST(LinksResultsTest, ASynchronisationOfA100BModelMoves2TB) {
  EXPECT_NEAR(traffic_of_100b({.dp = 6}, nodes_of_8(6)).reduction / 2e12, 1, 0.02);
  for (const int dp : {2, 4, 6, 8}) EXPECT_NEAR(traffic_of_100b({.dp = dp}, nodes_of_8(dp)).reduction / synchronised(dp), 1, 0.02) << dp;
}

TEST(LinksResultsTest, TensorParallelismInsideANodeLoadsNoNic) {
  const SmallCluster cluster = nodes_of_8(4);
  const Traffic inside = traffic_of_100b({.tp = 8, .dp = 4}, cluster), beyond = traffic_of_100b({.tp = 16, .dp = 2}, cluster);
  EXPECT_GT(axis_of(inside, "tp").sent, 0);
  EXPECT_EQ(on(axis_of(inside, "tp"), LinkClass::kNic), 0);
  EXPECT_EQ(on(axis_of(inside, "tp"), LinkClass::kDomain), axis_of(inside, "tp").sent);
  EXPECT_GT(on(axis_of(beyond, "tp"), LinkClass::kNic), 0);
  // NICs have a tenth of a port's bandwidth here: a step that tp alone fills inside the node would be longer on them.
  const double step = inside.links[0].busiest / inside.links[0].capacity;
  EXPECT_THAT(explain_traffic(inside, cluster_of(cluster), step), Contains(HasSubstr("tp (tensor parallel) would take")));
  EXPECT_THAT(explain_traffic(inside, cluster_of(cluster), step), Contains(HasSubstr("it belongs inside an NVLink domain")));
  EXPECT_THAT(explain_traffic(inside, cluster_of(cluster), 1e6), Contains(HasSubstr("it could leave the node")));
  EXPECT_THAT(explain_traffic(beyond, cluster_of(cluster), step),
              Contains(HasSubstr("tp (tensor parallel), which every layer waits for, keeps NICs busy")));
}

// Four stages of a node each: side by side they are one leaf; with the data axis between them every neighbour is under another one.
TEST(LinksResultsTest, PipelinesStayUnderALeafWhereStagesStandSideBySide) {
  const SmallCluster cluster = nodes_of_8(16, 4);
  const Degrees degrees{.pp = 4, .dp = 4, .microbatches = 8};
  const Traffic usual = traffic_of_100b(degrees, cluster), pipelined = traffic_of_100b(degrees, cluster, Order::kPipelined);
  const AxisLoad &across = axis_of(usual, "pp"), &beside = axis_of(pipelined, "pp");
  EXPECT_EQ(across.sent, beside.sent);
  EXPECT_EQ(on(across, LinkClass::kLeafUp), across.sent);
  EXPECT_EQ(on(beside, LinkClass::kLeafUp), 0);
  EXPECT_EQ(on(beside, LinkClass::kNic), beside.sent);
  // And the other way round with gradients: they need the spines where pipelines do not.
  EXPECT_EQ(on(axis_of(usual, "dp"), LinkClass::kLeafUp), 0);
  EXPECT_EQ(on(axis_of(pipelined, "dp"), LinkClass::kLeafUp), axis_of(pipelined, "dp").sent);
  EXPECT_THAT(explain_traffic(usual, cluster_of(cluster), 10), Contains(HasSubstr("Of what pipeline stages send, all crosses the spines")));
  EXPECT_THAT(explain_traffic(pipelined, cluster_of(cluster), 10),
              Contains("Neighbours of the pipeline stand under one leaf: the spines carry nothing of it."));
}

// The oversubscription that is named makes the busiest leaf busy for a tenth of the step.
TEST(LinksResultsTest, WhatDataParallelismNeedsBetweenLeaves) {
  const Degrees degrees{.pp = 4, .dp = 4, .microbatches = 8};
  SmallCluster cluster = nodes_of_8(16, 4);
  const auto busy = [&](double step) {
    const Traffic traffic = traffic_of_100b(degrees, cluster, Order::kPipelined);
    const LinkLoad& up = traffic.links.back();
    EXPECT_EQ(up.link, LinkClass::kLeafUp);
    return up.busiest / up.capacity / step;
  };
  const double step = busy(1) * 40;  // the links to the spines are busy a fortieth of it
  const Traffic traffic = traffic_of_100b(degrees, cluster, Order::kPipelined);
  EXPECT_THAT(explain_traffic(traffic, cluster_of(cluster), step), Contains(HasSubstr("with an oversubscription of 4.0:1 it would take a tenth of it")));
  cluster.oversubscription = 4;
  EXPECT_DOUBLE_EQ(busy(step), 0.1);
  EXPECT_THAT(explain_traffic(traffic, cluster_of(cluster), step / 5), Contains(HasSubstr("more bandwidth there shortens it")));
}

// What leaves nodes reaches others, and is what the NICs carry.
TEST(LinksResultsTest, SixteenThousandRanks) {
  const Traffic traffic = traffic_of_100b({.tp = 8, .pp = 16, .dp = 128, .microbatches = 32}, nodes_of_8(2048, 32));
  EXPECT_NEAR(axis_of(traffic, "dp").sent / synchronised(128), 1, 0.02);
  EXPECT_EQ(on(axis_of(traffic, "tp"), LinkClass::kNic), 0);
  EXPECT_EQ(traffic.ranks, 16384);
  EXPECT_EQ(traffic.nodes.size(), 2048u);
  double out = 0, in = 0;
  for (const NodeLoad& node : traffic.nodes) {
    out += node.out;
    in += node.in;
  }
  EXPECT_EQ(out, in);
  EXPECT_EQ(out, traffic.links[1].all);
}

TEST(LinksTextTest, TheTableHasEveryClassOfLinksAndEveryAxis) {
  const SmallCluster cluster = nodes_of_8(16, 4);
  const Traffic traffic = traffic_of_100b({.pp = 4, .dp = 4, .microbatches = 8}, cluster);
  const std::string table = traffic_table(traffic, cluster_of(cluster), 10);
  for (const LinkLoad& load : traffic.links) EXPECT_THAT(table, HasSubstr(link_name(load.link)));
  for (const AxisLoad& axis : traffic.axes) EXPECT_THAT(table, HasSubstr(axis.axis));
  EXPECT_THAT(table, HasSubstr("80.0 GB/s")) << "8 NICs of 10 GB/s";
}

TEST(LinksTextTest, OneRankSendsNothing) {
  const program::Layout layout = small_layout({}, [](config::RunConfig&) {});
  const Cluster cluster = cluster_of({});
  const Traffic traffic = traffic_of(program::judged_steps(layout), Placement(cluster, layout.mesh));
  EXPECT_THAT(explain_traffic(traffic, cluster, 1), testing::ElementsAre("Nothing is sent: every group has one rank."));
  EXPECT_THAT(traffic_table(traffic, cluster, 1), Not(HasSubstr("nan")));
  EXPECT_THROW(explain_traffic(traffic, cluster, 0), InternalError);
}

}  // namespace
}  // namespace lockstep::plan
