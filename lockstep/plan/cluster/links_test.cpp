// Traffic against the ledgers of all ranks, link by link.
#include "lockstep/plan/cluster/links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/test_traffic.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::plan {
namespace {

using config::RunConfig;
using program::Layout;
using program::Program;

struct Case {
  std::string name;
  SmallRun run{};
  std::function<void(RunConfig&)> change;
};

std::vector<Case> dense_cases() {
  return {
      {"ring of 4", {.preset = "gpt2-test", .ranks = 4}, [](RunConfig&) {}},
      {"parameter server of 3", {.preset = "gpt2-test", .ranks = 3, .global_batch = 6},
       [](RunConfig& config) { config.parallel.data_parallel = config::DataParallel::kParameterServer; }},
      {"parameter server, tp, pp",
       {.preset = "gpt2-test", .ranks = 12, .global_batch = 18},
       [](RunConfig& config) {
         config.parallel.data_parallel = config::DataParallel::kParameterServer;
         config.parallel.tp = config.parallel.pp = 2;
       }},
      {"tp 4, sequence parallel", {.ranks = 8}, [](RunConfig& config) { config.parallel.tp = 4; }},
      {"tp 4 with uneven rows", {.ranks = 8, .micro_batch = 1, .global_batch = 4, .seq_len = 30},
       [](RunConfig& config) { config.parallel.tp = 4, config.parallel.pp = 2; }},
      {"tp 3, uneven vocabulary", {.preset = "gpt2-test", .ranks = 6, .seq_len = 31},
       [](RunConfig& config) { config.parallel.tp = 3, config.parallel.pp = 2; }},
      {"pipeline of 4", {.preset = "gpt2-test", .ranks = 8, .layers = 4}, [](RunConfig& config) { config.parallel.pp = 4; }},
      {"interleaved",
       {.preset = "gpt2-test", .ranks = 8, .layers = 4},
       [](RunConfig& config) {
         config.parallel.pp = config.parallel.tp = 2;
         config.parallel.virtual_stages = 2;
         config.parallel.schedule.kind = program::ScheduleKind::kInterleaved;
       }},
      {"ring of contexts", {.ranks = 8}, [](RunConfig& config) { config.parallel.cp = 4; }},
      {"nested contexts",
       {.ranks = 8},
       [](RunConfig& config) {
         config.parallel.cp = 4;
         config.parallel.context = config::ContextKind::k2d;
         config.parallel.context_inner = 2;
         config.parallel.zero = 1;
       }},
  };
}

std::vector<Case> sharded_cases() {
  std::vector<Case> cases;
  for (const int zero : {1, 2, 3})
    for (const bool narrow : {false, true})
      cases.push_back({cat("zero ", zero, narrow ? " bf16" : "", ", 2 x 2, tp 4"),
                       {.ranks = 16},
                       [=](RunConfig& config) {
                         config.parallel.zero = zero;
                         config.parallel.dp_replicate = config.parallel.dp_shard = 2;
                         config.parallel.tp = 4;
                         if (narrow) config.train.precision = config.parallel.reduce_precision = config::Precision::kBf16;
                       }});
  cases.push_back({"zero 1, tp 12: copies of key/value heads", {.ranks = 24}, [](RunConfig& config) {
                     config.parallel.zero = 1;
                     config.parallel.tp = 12;
                   }});
  cases.push_back({"zero 3, pp 2, rows in groups of their own", {.ranks = 8}, [](RunConfig& config) {
                     config.parallel.zero = 3;
                     config.parallel.pp = config.parallel.tp = 2;
                     config.parallel.row_groups = true;
                   }});
  for (const int zero : {0, 1, 3})
    cases.push_back({cat("Muon, zero ", zero), {.ranks = 12, .global_batch = 12}, [=](RunConfig& config) {
                       config.optimizer.kind = config::OptimizerKind::kMuon;
                       config.parallel.zero = zero;
                       config.parallel.pp = config.parallel.tp = 2;
                     }});
  return cases;
}

std::vector<Case> expert_cases() {
  std::vector<Case> cases;
  const auto add = [&](std::string name, int ep, int etp, int zero, const std::function<void(RunConfig&)>& change, int ranks = 16) {
    cases.push_back({std::move(name), {.preset = "mixtral-test", .ranks = ranks, .global_batch = int64_t{4} * ranks}, [=](RunConfig& config) {
                       config.parallel.ep = ep;
                       config.parallel.etp = etp;
                       config.parallel.zero = zero;
                       change(config);
                     }});
  };
  add("ep 4", 4, 1, 0, [](RunConfig& config) { config.parallel.pp = 2; });
  add("ep 8 over tp 2, zero 1", 8, 1, 1, [](RunConfig& config) { config.parallel.tp = 2; });
  add("ep 2, etp 2, zero 3", 2, 2, 3, [](RunConfig& config) { config.parallel.tp = 4; });
  add("ep 8 by nodes", 8, 1, 1, [](RunConfig& config) {
    config.parallel.dispatcher = config::Dispatcher::kHierarchical;
    config.parallel.ranks_per_node = 4;
  });
  add("ep 2, etp 3, zero 1", 2, 3, 1, [](RunConfig& config) { config.parallel.pp = 2; }, 24);
  add("Muon of experts", 4, 2, 1, [](RunConfig& config) { config.optimizer.kind = config::OptimizerKind::kMuon; });
  return cases;
}

struct Stand {
  std::string name;
  SmallCluster cluster;
};
std::vector<Stand> stands() {
  return {{"nodes of 4, leaves of 2", {.devices_per_node = 4, .domain = 4, .nodes_per_leaf = 2}},
          {"domains of 2 nodes, leaves of 3", {.devices_per_node = 2, .domain = 4, .nodes_per_leaf = 3}},
          {"domains of 2 in nodes of 4, rails", {.devices_per_node = 4, .domain = 2, .nodes_per_leaf = 2, .rails = true}},
          {"nodes of 8, rails, leaves of 1", {.devices_per_node = 8, .domain = 8, .nodes_per_leaf = 1, .rails = true}},
          {"nodes of 4, rails", {.devices_per_node = 4, .domain = 4, .nodes_per_leaf = 2, .rails = true}},
          {"domains of 2 nodes, rails, leaves of 3", {.devices_per_node = 2, .domain = 4, .nodes_per_leaf = 3, .rails = true}},
          {"nodes of 1", {.devices_per_node = 1, .domain = 1, .nodes_per_leaf = 2}},
          {"one node", {.devices_per_node = 24, .domain = 24}}};
}

// What ranks send each other, one send after the other.
class Counted {
 public:
  Counted(const Layout& layout, const Program& program) {
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const program::Ledger ledger = program::predict_ledger(layout, program, rank);
      for (const auto& [key, entry] : ledger.entries())
        for (const auto& [peer, bytes] : entry.sent) sends_.push_back({rank, peer, bytes, key.axis, key.id.purpose});
    }
  }

  struct Sums {
    std::map<std::string, AxisLoad> axes;
    std::map<LinkClass, std::map<int, std::pair<double, double>>> flows;  // out and in by device, node or leaf switch
    double reduction = 0;
  };
  Sums on(const Placement& placement) const {
    Sums sums;
    for (const Send& send : sends_) {
      const auto bytes = static_cast<double>(send.bytes);
      AxisLoad& axis = sums.axes[send.axis];
      axis.sent += bytes;
      using enum program::Purpose;
      for (const program::Purpose purpose : {kUnshard, kReduceGrad, kReduceShard, kPush, kPull})
        if (send.purpose == purpose) sums.reduction += bytes;
      const auto over = [&](LinkClass link, int out, int in) {
        sums.flows[link][out].first += bytes;
        sums.flows[link][in].second += bytes;
        axis.on[static_cast<size_t>(link)] += bytes;
      };
      const int from = placement.device_of(send.from), to = placement.device_of(send.to);
      const int from_node = placement.node_of(send.from), to_node = placement.node_of(send.to);
      if (placement.domain_of(send.from) == placement.domain_of(send.to)) {
        over(LinkClass::kDomain, from, to);
      } else if (from_node == to_node) {
        over(LinkClass::kHost, from, to);
      } else {
        over(LinkClass::kNic, from_node, to_node);
        const int to_switch = leaf_switch(placement.cluster(), to), of_node = placement.cluster().devices_per_node;
        // NCCL: to the device of the receiver's index in the sender's node, over links of their domain.
        const bool forwarded = placement.cluster().network.rails && placement.cluster().domain >= of_node && from % of_node != to % of_node;
        const int last = forwarded ? from_node * of_node + to % of_node : from;
        if (forwarded) over(LinkClass::kDomain, from, last);
        const int from_switch = leaf_switch(placement.cluster(), last);
        if (from_switch != to_switch) over(LinkClass::kLeafUp, from_switch, to_switch);
      }
    }
    return sums;
  }

 private:
  static int leaf_switch(const Cluster& cluster, int device) {
    const int of_node = cluster.devices_per_node, leaf = cluster.leaf_of(device / of_node);
    return cluster.network.rails ? leaf * of_node + device % of_node : leaf;  // a NIC for each device
  }
  struct Send {
    int from = 0, to = 0;
    int64_t bytes = 0;
    std::string axis;
    program::Purpose purpose{};
  };
  std::vector<Send> sends_;
};

void expect_same(const Traffic& traffic, const Counted::Sums& sums) {
  EXPECT_EQ(traffic.reduction, sums.reduction);
  EXPECT_EQ(traffic.axes.size(), sums.axes.size());
  for (const AxisLoad& axis : traffic.axes) {
    SCOPED_TRACE(axis.axis);
    ASSERT_TRUE(sums.axes.contains(axis.axis));
    EXPECT_EQ(axis.sent, sums.axes.at(axis.axis).sent);
    EXPECT_EQ(axis.on, sums.axes.at(axis.axis).on);
  }
  std::map<LinkClass, LinkLoad> loads;
  for (const LinkLoad& load : traffic.links) loads[load.link] = load;
  for (const auto& [link, flows] : sums.flows) {
    SCOPED_TRACE(link_name(link));
    ASSERT_TRUE(loads.contains(link));
    double all = 0, most = 0;
    for (const auto& [at, flow] : flows) {
      all += flow.first;
      most = std::max({most, flow.first, flow.second});
    }
    EXPECT_EQ(loads[link].all, all);
    EXPECT_EQ(loads[link].busiest, most);
    const auto& [out, in] = flows.at(loads[link].where);
    EXPECT_EQ(std::max(out, in), most);
  }
  for (size_t node = 0; node < traffic.nodes.size(); ++node) {
    const auto nics = sums.flows.find(LinkClass::kNic);
    const auto flow = nics == sums.flows.end() ? std::pair(0.0, 0.0) : [&] {
      const auto found = nics->second.find(static_cast<int>(node));
      return found == nics->second.end() ? std::pair(0.0, 0.0) : found->second;
    }();
    EXPECT_EQ(traffic.nodes[node].out, flow.first);
    EXPECT_EQ(traffic.nodes[node].in, flow.second);
  }
}

void expect_ledgers(const Case& of) {
  SCOPED_TRACE(of.name);
  const Layout layout = small_layout(of.run, of.change);
  const Program program = program::make_program(layout);
  const Counted counted(layout, program);
  for (Stand stand : stands())
    for (const Order order : {Order::kUsual, Order::kPipelined}) {
      SCOPED_TRACE(cat(stand.name, ", order ", static_cast<int>(order)));
      stand.cluster.nodes = (of.run.ranks - 1) / stand.cluster.devices_per_node + 2;  // one stands empty
      const Placement placement(cluster_of(stand.cluster), layout.mesh, order);
      expect_same(traffic_of(layout, program, placement), counted.on(placement));
    }
}

TEST(TrafficTest, IsTheSumOfTheLedgersOfDenseLayouts) {
  for (const Case& of : dense_cases()) expect_ledgers(of);
}
TEST(TrafficTest, IsTheSumOfTheLedgersOfShardedLayouts) {
  for (const Case& of : sharded_cases()) expect_ledgers(of);
}
TEST(TrafficTest, IsTheSumOfTheLedgersOfLayoutsWithExperts) {
  for (const Case& of : expert_cases()) expect_ledgers(of);
}

// All nodes send as much: the one with slow NICs is busy longest.
TEST(TrafficTest, TheBusiestIsTheOneThatTakesLongest) {
  const Layout layout = small_layout({.ranks = 16}, [](RunConfig& config) { config.parallel.tp = 4; });
  Cluster cluster = cluster_of({.nodes = 4});
  cluster.slow.nics[2] = 0.5;
  const Traffic traffic = traffic_of(program::judged_steps(layout), Placement(cluster, layout.mesh));
  const LinkLoad& nics = traffic.links.back();
  EXPECT_EQ(nics.link, LinkClass::kNic);
  EXPECT_EQ(nics.where, 2);
  EXPECT_EQ(nics.capacity, 4 * 10e9 / 2);
}

// Steps that are read off shorter ones send what the whole step sends.
TEST(TrafficTest, OfJudgedStepsIsThatOfTheWholeStep) {
  for (const int pp : {1, 2})
    for (const int zero : {0, 1, 3}) {
      const SmallRun run{.ranks = 4 * pp, .global_batch = 4 * 2 * 64};
      const Layout layout = small_layout(run, [&](RunConfig& config) {
        config.parallel.pp = pp;
        config.parallel.tp = 2;
        config.parallel.zero = zero;
      });
      const program::JudgedSteps steps = program::judged_steps(layout, 256);
      ASSERT_GT(steps.made.back().left_out, 0);
      const Placement placement(cluster_of({.nodes = 2 * pp, .devices_per_node = 2, .domain = 2, .nodes_per_leaf = 1}), layout.mesh);
      const Traffic whole = traffic_of(layout, program::make_program(layout), placement), judged = traffic_of(steps, placement);
      ASSERT_EQ(whole.axes.size(), judged.axes.size());
      for (size_t i = 0; i < whole.axes.size(); ++i) {
        EXPECT_EQ(whole.axes[i].axis, judged.axes[i].axis);
        EXPECT_EQ(whole.axes[i].sent, judged.axes[i].sent) << whole.axes[i].axis;
        EXPECT_EQ(whole.axes[i].on, judged.axes[i].on) << whole.axes[i].axis;
      }
      EXPECT_EQ(whole.reduction, judged.reduction);
      for (size_t i = 0; i < whole.links.size(); ++i) EXPECT_EQ(whole.links[i].busiest, judged.links[i].busiest);
    }
}

}  // namespace
}  // namespace lockstep::plan
