#include "lockstep/plan/cluster/collective_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string_view>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

using mesh::Axis;
using mesh::Mesh;
using mesh::PerAxis;
using program::Collective;

constexpr double kMib = 1024 * 1024, kGb = 1e9, kUs = 1e-6;

// tp ranks side by side, dp groups across: one of each.
GroupShape shape(const Cluster& cluster, int dp, int tp, Axis axis) {
  PerAxis degrees = PerAxis::ones();
  degrees[Axis::kDpShard] = dp;
  degrees[Axis::kTp] = tp;
  const Mesh mesh(degrees);
  return shape_of(Placement(cluster, mesh), mesh, axis, 0);
}
GroupShape together(const Cluster& cluster, int ranks) { return shape(cluster, 1, ranks, Axis::kTp); }

// As nccl-tests prints it: bytes that each rank must send at least, over the time.
double bus_bandwidth(const Cluster& cluster, const GroupShape& group, Collective collective, double bytes) {
  const double n = group.ranks, passes = collective == Collective::kAllReduce ? 2 : 1;
  return passes * (n - 1) / n * bytes / collective_time(cluster, group, collective, bytes).seconds();
}

void expect_near(double value, double expected, double tolerance, const std::string& what) {
  EXPECT_NEAR(value / expected, 1, tolerance) << what << ": " << value << " against " << expected;
}

// Measured by nccl-tests on A100 joined by NVSwitch, GB/s of bus bandwidth by MiB, and the line that was fitted to 1024 sizes (VIA-Research/vTrain
// trace/a100, network_measurements of published_runs.json).
struct Measured {
  int ranks = 0;
  std::array<double, 8> bus{};  // of 1, 4, 16, 64, 128, 256, 512, 1024 MiB
  double alpha = 0, fitted = 0;  // us, GB/s
};
constexpr std::array<double, 8> kSizes = {1, 4, 16, 64, 128, 256, 512, 1024};
constexpr std::array<Measured, 7> kA100 = {{{2, {23.72, 68.55, 127.16, 165.81, 175.77, 184.39, 189.15, 197.28}, 46.0, 192.9},
                                            {3, {21.88, 70.58, 144.34, 178.86, 192.66, 200.40, 206.48, 211.88}, 55.7, 209.7},
                                            {4, {30.60, 81.37, 140.11, 185.11, 201.61, 208.73, 216.48, 221.86}, 54.0, 218.4},
                                            {5, {26.73, 85.36, 135.01, 188.95, 201.33, 210.85, 218.25, 224.48}, 59.0, 222.2},
                                            {6, {23.94, 84.68, 137.63, 197.70, 199.58, 211.45, 222.55, 227.01}, 67.3, 224.5},
                                            {7, {23.06, 85.42, 126.36, 191.77, 200.53, 210.04, 224.14, 226.89}, 70.7, 226.2},
                                            {8, {19.78, 76.62, 126.33, 202.52, 202.13, 217.25, 224.15, 229.35}, 78.6, 227.3}}};

TEST(CollectiveTimeTest, AllReduceOfA100IsThatOfTheMeasuredTables) {
  const Cluster cluster = parse_cluster("8xa100");
  double all = 0;
  for (const Measured& measured : kA100) {
    const GroupShape group = together(cluster, measured.ranks);
    for (size_t i = 0; i < kSizes.size(); ++i) {
      const double bus = bus_bandwidth(cluster, group, Collective::kAllReduce, kSizes[i] * kMib) / kGb;
      const double tolerance = kSizes[i] >= 64 ? 0.07 : kSizes[i] >= 4 ? 0.17 : 0.36;
      expect_near(measured.bus[i] / bus, 1, tolerance, cat(measured.ranks, " ranks, ", kSizes[i], " MiB"));
      all += std::abs(measured.bus[i] / bus - 1) / (kA100.size() * kSizes.size());
    }
  }
  EXPECT_LT(all, 0.06) << "mean error";
}

TEST(CollectiveTimeTest, ItsLineIsThatOfTheFit) {
  const Cluster cluster = parse_cluster("8xa100");
  for (const Measured& measured : kA100) {
    const GroupShape group = together(cluster, measured.ranks);
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;  // least squares over 1 to 1024 MiB
    for (double mib = 1; mib <= 1024; ++mib) {
      const double bytes = mib * kMib, time = collective_time(cluster, group, Collective::kAllReduce, bytes).seconds();
      n += 1, x += bytes, y += time, xx += bytes * bytes, xy += bytes * time;
    }
    const double slope = (n * xy - x * y) / (n * xx - x * x), alpha = (y - slope * x) / n;
    expect_near(2 * (measured.ranks - 1.0) / measured.ranks / slope / kGb, measured.fitted, 0.02, cat("busbw of ", measured.ranks));
    EXPECT_NEAR(alpha / kUs, measured.alpha, 10) << measured.ranks;
  }
}

TEST(CollectiveTimeTest, LongMessagesOnOtherLinks) {
  const auto long_all_reduce = [](std::string_view name, int ranks) {
    const Cluster cluster = parse_cluster(name);
    return bus_bandwidth(cluster, together(cluster, ranks), Collective::kAllReduce, 16384 * kMib) / kGb;
  };
  expect_near(long_all_reduce("8xh100", 8), 475, 0.02, "NVLS of H100 (aliyun/SimAI)");
  expect_near(long_all_reduce("8xh800", 8), 215, 0.06, "NVLS of H800 (aliyun/SimAI)");
  expect_near(long_all_reduce("8xa100", 8), 235, 0.04, "a node of A100 (stas00/ml-engineering)");
  expect_near(long_all_reduce("8xmi300x", 2), 47.7, 0.05, "a pair of MI300X, one link (stas00/ml-engineering)");
  expect_near(long_all_reduce("8xmi300x", 8), 312.9, 0.05, "all of a mesh");
  const Cluster h100 = parse_cluster("8xh100");
  expect_near(bus_bandwidth(h100, together(h100, 8), Collective::kAllGather, 16384 * kMib) / kGb, 371, 0.07, "of the wire");
  const auto algorithm = [&](int ranks) {
    return std::string_view(collective_time(h100, together(h100, ranks), Collective::kAllReduce, 1024 * kMib).algorithm);
  };
  EXPECT_EQ(algorithm(8), "nvls");
  EXPECT_EQ(algorithm(2), "ring") << "nothing for a switch to sum";
  const double latency = collective_time(h100, together(h100, 8), Collective::kAllGather, 1024 * kMib).latency;
  EXPECT_NEAR(latency / kUs, 40, 1) << "fit of SimAI's nvlink_ratio.csv";
}

// One rank a node: what a NIC gives, and far less latency than the tables of SimAI have, which are the upper bound (recipe, section 4).
TEST(CollectiveTimeTest, RingsOverNicsGetWhatIsMeasuredOfThem) {
  struct Row {
    std::string_view cluster{};
    double nic = 0;
  };
  for (const auto& [name, nic] : {Row{"16 nodes of 8xa100", 23.5}, Row{"16 nodes of 8xh100", 48.5}}) {
    const Cluster cluster = parse_cluster(name);
    const GroupShape dp = shape(cluster, 16, 8, Axis::kDpShard);
    EXPECT_DOUBLE_EQ(group_bandwidth(cluster, dp), nic * kGb);
    expect_near(bus_bandwidth(cluster, dp, Collective::kReduceScatter, 16384 * kMib) / kGb, nic, 0.02, std::string(name));
  }
  const Cluster cluster = parse_cluster("128 nodes of 8xh100");
  const GroupShape all = shape(cluster, 1, 1024, Axis::kTp);
  EXPECT_LT(collective_time(cluster, all, Collective::kAllGather, kMib).latency, 37423 * kUs / 5) << "5 to 8 times the model's";
}

// 1T parameters on 3072 A100, tp 8, pp 64, dp 6 (arXiv:2104.04473, 5.9): 892 GB/s through the middle of the pipeline, by the 48 ranks of a stage with
// an eighth of 2048 x 25600 bf16 each; 12.9 TB/s in all by the 512 groups that sum gradients. A run takes up to 30 % longer than messages alone.
TEST(CollectiveTimeTest, TheBandwidthOfALargeRunIsReached) {
  const Cluster cluster = parse_cluster("selene-a100");
  PerAxis degrees = PerAxis::ones();
  degrees[Axis::kPp] = 64;
  degrees[Axis::kDpShard] = 6;
  degrees[Axis::kTp] = 8;
  const Mesh mesh(degrees);
  const Placement placement(cluster, mesh);
  const double bytes = 2048.0 * 25600 * 2 / 8;
  const double pipeline = 48 * bytes / collective_time(cluster, shape_of_pair(placement, 48 * 31, 48 * 32), Collective::kSend, bytes).seconds();
  EXPECT_GT(pipeline, 892 * kGb);
  EXPECT_LT(pipeline, 1.3 * 892 * kGb);
  expect_near(512 * group_bandwidth(cluster, shape_of(placement, mesh, Axis::kDpShard, 0)), 12.9e12, 0.08, "gradients");
}

TEST(CollectiveTimeTest, GroupsOfANodeShareItsNics) {
  const Cluster cluster = parse_cluster("8 nodes of 8xa100");
  const double nic = 23.5 * kGb;
  EXPECT_DOUBLE_EQ(group_bandwidth(cluster, shape(cluster, 8, 8, Axis::kDpShard)), nic) << "eight groups, a NIC each";
  EXPECT_DOUBLE_EQ(group_bandwidth(cluster, shape(cluster, 16, 4, Axis::kDpShard)), 2 * nic) << "two members a node";
  EXPECT_DOUBLE_EQ(group_bandwidth(cluster, shape(cluster, 4, 16, Axis::kTp)), 8 * nic) << "two whole nodes";
  EXPECT_DOUBLE_EQ(group_bandwidth(cluster, shape(cluster, 8, 8, Axis::kTp)), 0.781 * 300 * kGb) << "one node";
  const Cluster half = parse_cluster("8 nodes of 8xa100, 4 NICs");
  EXPECT_DOUBLE_EQ(group_bandwidth(half, shape(half, 8, 8, Axis::kDpShard)), nic / 2);
  // One sender alone: its own NIC, not those of the node.
  EXPECT_DOUBLE_EQ(group_bandwidth(half, {.ranks = 2, .domains = 2, .nodes = 2}), nic);
}

TEST(CollectiveTimeTest, ARackHasTheNicsOfItsTrays) {
  const Cluster cluster = parse_cluster("36 nodes of 4xgb200");
  const GroupShape tp = shape(cluster, 18, 8, Axis::kTp), dp = shape(cluster, 18, 8, Axis::kDpShard);
  EXPECT_DOUBLE_EQ(group_bandwidth(cluster, tp), 0.802 * 900 * kGb) << "two trays, no NIC";
  EXPECT_DOUBLE_EQ(group_bandwidth(cluster, dp), 9 * 48.5 * kGb) << "nine members a rack, each with a NIC";
}

TEST(CollectiveTimeTest, OversubscriptionCostsWhereGroupsHaveFewNodesInALeaf) {
  const Cluster fair = parse_cluster("64 nodes of 8xh100, 32 nodes a leaf"), over = parse_cluster("64 nodes of 8xh100, 32 nodes a leaf, 4:1");
  PerAxis degrees = PerAxis::ones();
  degrees[Axis::kPp] = 32;
  degrees[Axis::kDpShard] = 2;
  degrees[Axis::kTp] = 8;
  const Mesh mesh(degrees);
  const auto rate = [&](const Cluster& cluster, Order order, Axis axis) {
    return group_bandwidth(cluster, shape_of(Placement(cluster, mesh, order), mesh, axis, 0));
  };
  const double nic = 48.5 * kGb;
  EXPECT_DOUBLE_EQ(rate(fair, Order::kPipelined, Axis::kDpShard), nic);
  EXPECT_DOUBLE_EQ(rate(over, Order::kPipelined, Axis::kDpShard), nic / 4) << "one node a leaf: all that leaves a node crosses";
  EXPECT_DOUBLE_EQ(rate(over, Order::kUsual, Axis::kDpShard), nic) << "under one leaf";
  EXPECT_DOUBLE_EQ(group_bandwidth(over, shape(over, 64, 8, Axis::kDpShard)), nic) << "a long ring crosses once in 32 nodes";
  // Each rank with each other: half of all bytes cross, whatever the number of nodes.
  const auto pairs = [&](const Cluster& cluster) {
    return collective_time(cluster, shape(cluster, 64, 8, Axis::kDpShard), Collective::kAllToAll, 1e9).transfer;
  };
  EXPECT_NEAR(pairs(over) / pairs(fair), 4 * 32.0 / 63, 1e-9);
}

TEST(CollectiveTimeTest, ATreeIsForShortMessagesOverManyNodes) {
  const Cluster cluster = parse_cluster("128 nodes of 8xa100");
  const GroupShape dp = shape(cluster, 128, 8, Axis::kDpShard);
  const auto algorithm = [&](double bytes) { return std::string_view(collective_time(cluster, dp, Collective::kAllReduce, bytes).algorithm); };
  EXPECT_EQ(algorithm(64 * 1024), "tree");
  EXPECT_EQ(algorithm(4096 * kMib), "ring");
  // LL: 2 log2(128) steps of 5.0 us and 6.8 us once (NCCL), and what a call takes beyond that.
  EXPECT_NEAR(collective_time(cluster, dp, Collective::kAllReduce, 1024).latency, (25 + 6.8 + 14 * 5.0) * kUs, 1e-9);
}

TEST(CollectiveTimeTest, SwitchesSumBeforeTheNetworkCarries) {
  const Cluster cluster = parse_cluster("16 nodes of 8xh100");
  const GroupShape all = shape(cluster, 1, 128, Axis::kTp);
  const CollectiveTime time = collective_time(cluster, all, Collective::kAllReduce, 256 * kMib);
  EXPECT_EQ(std::string_view(time.algorithm), "nvls tree");
  EXPECT_NEAR(time.transfer, 2 * 256 * kMib / (8 * 48.5 * kGb), 1e-9) << "up and down, over eight NICs";
}

// Dispatch of DeepSeek-V3's experts: hidden size 7168, 4096 tokens a rank, top 8, bf16 (Megatron Core MoE report; kernel_timings).
TEST(CollectiveTimeTest, AllToAllIsThatOfMeasuredDispatch) {
  const double bytes = 4096.0 * 8 * 7168 * 2;
  const auto seconds = [&](std::string_view name, int ep) {
    const Cluster cluster = parse_cluster(name);
    return collective_time(cluster, shape(cluster, cluster.devices() / ep, ep, Axis::kTp), Collective::kAllToAll, bytes).seconds();
  };
  expect_near(seconds("8 nodes of 8xh100", 64), 9.164e-3, 0.08, "EP 64 on H100");
  expect_near(seconds("2 nodes of 8xh100", 16), 5.774e-3, 0.08, "EP 16 on H100 (combine)");
  expect_near(seconds("gb200-nvl72", 8), 0.735e-3, 0.08, "EP 8 on GB200");
}

TEST(CollectiveTimeTest, SendsAndShiftsTakeOneStep) {
  const Cluster cluster = parse_cluster("4 nodes of 8xa100");
  PerAxis degrees = PerAxis::ones();
  degrees[Axis::kPp] = 4;
  degrees[Axis::kTp] = 8;
  const Mesh mesh(degrees);
  const Placement placement(cluster, mesh);
  const CollectiveTime send = collective_time(cluster, shape_of_pair(placement, 0, 8), Collective::kSend, 64 * kMib);
  EXPECT_NEAR(send.transfer, 64 * kMib / (23.5 * kGb), 1e-9);
  EXPECT_NEAR(send.latency, (25 + 8.4 + 14) * kUs, 1e-9);
  EXPECT_NEAR(collective_time(cluster, shape_of_pair(placement, 0, 1), Collective::kSend, 64 * kMib).transfer, 64 * kMib / (234.3 * kGb), 1e-9);
  // A ring of context parallelism over two nodes waits for its hop between them, over one NIC.
  EXPECT_NEAR(collective_time(cluster, shape(cluster, 2, 16, Axis::kTp), Collective::kShift, 64 * kMib).transfer, 64 * kMib / (23.5 * kGb), 1e-9);
  const Cluster over = parse_cluster("2 nodes of 8xa100, 1 nodes a leaf, 2:1");
  const GroupShape pair{.ranks = 2, .domains = 2, .nodes = 2, .leaves = 2, .sharing = 8};
  EXPECT_NEAR(collective_time(over, pair, Collective::kSend, 64 * kMib).transfer, 2 * 64 * kMib / (23.5 * kGb), 1e-9);
  EXPECT_NEAR(collective_time(over, pair, Collective::kSend, 64 * kMib).latency, (25 + 8.4 + 14 + 3.7 - 2.8) * kUs, 1e-9);
}

TEST(CollectiveTimeTest, SlowNodesAndNicsSlowTheirGroups) {
  Cluster cluster = parse_cluster("2 nodes of 8xh100");
  const GroupShape dp{.ranks = 2, .domains = 2, .nodes = 2, .sharing = 8}, tp{.ranks = 8, .largest_domain = 8, .per_node = 8};
  GroupShape slow_dp = dp, slow_tp = tp;
  slow_dp.slow_nics = 0.5;
  slow_tp.slow_devices = 0.8;
  EXPECT_DOUBLE_EQ(group_bandwidth(cluster, slow_dp), group_bandwidth(cluster, dp) / 2);
  EXPECT_DOUBLE_EQ(group_bandwidth(cluster, slow_tp), group_bandwidth(cluster, tp) * 0.8);
}

TEST(CollectiveTimeTest, CardsWithoutLinksMeetOverPcie) {
  const Cluster cluster = parse_cluster("8xl40s");
  expect_near(group_bandwidth(cluster, together(cluster, 8)) / kGb, 31 * 12 / 15.8, 0.01, "NCCL's 12 of 15.8 GB/s");
  const Cluster bridged = parse_cluster("8xh100-nvl");
  EXPECT_GT(group_bandwidth(bridged, together(bridged, 2)), 4 * group_bandwidth(bridged, together(bridged, 4)));
}

TEST(CollectiveTimeTest, EveryCollectiveTakesTimeAndMoreForMore) {
  for (const std::string_view name : {"4 nodes of 8xh100", "4 nodes of 8xmi300x", "4 nodes of 8xl40s", "4 nodes of 4xgb200", "4 nodes of 8xv100"}) {
    Cluster cluster = parse_cluster(name);
    for (const bool cpu : {false, true}) {
      if (cpu) cluster.device.generation = Generation::kCpu;
      for (size_t i = 0; i < program::kCollectiveNames.size(); ++i) {
        const auto collective = static_cast<Collective>(i);
        for (const GroupShape& group :
             {together(cluster, 4), shape(cluster, 4, cluster.devices_per_node, Axis::kDpShard), together(cluster, cluster.devices())}) {
          double before = 0;
          for (double bytes = 256; bytes < 1e11; bytes *= 16) {
            const CollectiveTime time = collective_time(cluster, group, collective, bytes);
            EXPECT_GT(time.latency, 0);
            EXPECT_GE(time.seconds(), before) << name << " " << program::collective_name(collective) << " " << bytes;
            EXPECT_LT(time.seconds(), 100);
            before = time.seconds();
          }
        }
      }
    }
  }
}

TEST(CollectiveTimeTest, AGroupOfOneTakesNone) {
  const Cluster cluster = parse_cluster("8xh100");
  EXPECT_EQ(collective_time(cluster, {}, Collective::kAllReduce, 1e9).seconds(), 0);
  EXPECT_EQ(collective_time(cluster, together(cluster, 8), Collective::kAllReduce, 0).seconds(), 0);
}

TEST(CollectiveTimeTest, RanksOnCpusUseTheAlgorithmsOfThisLibrary) {
  Cluster cluster;
  cluster.devices_per_node = cluster.domain = 4;
  cluster.device = {.name = "cpu", .generation = Generation::kCpu, .link = 8e9, .link_to_one = 8e9, .link_efficiency = 1, .link_latency = 10e-6};
  const GroupShape four = together(cluster, 4);
  const CollectiveTime time = collective_time(cluster, four, Collective::kAllReduce, 32e6);
  EXPECT_DOUBLE_EQ(time.latency, 20e-6) << "two rounds";
  EXPECT_DOUBLE_EQ(time.transfer, 2 * 0.75 * 32e6 / 8e9);
  EXPECT_DOUBLE_EQ(collective_time(cluster, four, Collective::kAllGather, 32e6).seconds(), 10e-6 + 0.75 * 32e6 / 8e9);
  EXPECT_DOUBLE_EQ(collective_time(cluster, four, Collective::kShift, 32e6).seconds(), 10e-6 + 32e6 / 8e9);
}

}  // namespace
}  // namespace lockstep::plan
