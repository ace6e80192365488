#include "lockstep/plan/call_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "lockstep/plan/test_layouts.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::plan {
namespace {

Cluster cluster_of(int nodes) {
  Cluster cluster = parse_cluster("8xh100");
  cluster.nodes = nodes;
  cluster.devices_per_node = cluster.domain = cluster.nics_per_node = 4;
  cluster.network.nic = 50e9;
  return cluster;
}

config::RunConfig run_of(int64_t batch) {
  config::RunConfig config = small_run();
  config.train.micro_batch = 1;
  config.train.global_batch = batch;
  config.parallel.tp = 2;
  config.parallel.pp = 2;
  return config;
}

std::map<std::string, double> bytes_by_axis(const std::vector<CallRow>& rows) {
  std::map<std::string, double> bytes;
  for (const CallRow& row : rows) bytes[row.axis] += row.bytes;
  return bytes;
}

// The bytes are those of the predicted ledger, axis by axis.
TEST(CallRows, SendWhatTheLedgerPredicts) {
  const program::Layout layout = layout_of(run_of(8), 8);
  const Placement placement(cluster_of(2), layout.mesh);
  for (const int rank : {0, 4}) {
    std::map<std::string, double> predicted;
    const program::Ledger ledger = program::predict_ledger(layout, program::make_program(layout), rank);
    for (const auto& [key, entry] : ledger.entries()) predicted[key.axis] += static_cast<double>(entry.sent_total());
    const std::vector<CallRow> rows = call_rows(program::judged_steps(layout), rank, placement);
    for (const auto& [axis, bytes] : bytes_by_axis(rows)) EXPECT_EQ(bytes, predicted[axis]) << axis;
    EXPECT_EQ(bytes_by_axis(rows).size(), predicted.size());
    for (const CallRow& row : rows) {
      EXPECT_GT(row.seconds, 0) << row.axis;
      EXPECT_GE(row.calls, 1) << row.axis;
      EXPECT_FALSE(row.algorithm.empty());
    }
    EXPECT_TRUE(std::ranges::is_sorted(rows, std::greater<>{}, &CallRow::bytes));
  }
}

// tp 2 stays on a node of 4, stages of ranks 0..3 and 4..7 are two nodes.
TEST(CallRows, SayWhereTheirGroupsAre) {
  const program::Layout layout = layout_of(run_of(8), 8);
  const Placement placement(cluster_of(2), layout.mesh);
  for (const CallRow& row : call_rows(program::judged_steps(layout), 0, placement)) {
    if (row.axis == "tp") { EXPECT_EQ(row.shape.nodes, 1); }
    if (row.axis == "pp") { EXPECT_EQ(row.shape.nodes, 2); }
  }
}

// A step of which shorter ones were made.
TEST(CallRows, OfALongStepFollowFromShorterOnes) {
  const program::Layout layout = layout_of(run_of(256), 8);
  const program::JudgedSteps shorter = program::judged_steps(layout, 256);
  ASSERT_EQ(shorter.made.size(), 2u);
  program::JudgedSteps whole;
  whole.made.push_back({.layout = layout, .program = program::make_program(layout)});
  const Placement placement(cluster_of(2), layout.mesh);
  const std::vector<CallRow> rows = call_rows(shorter, 0, placement), right = call_rows(whole, 0, placement);
  ASSERT_EQ(rows.size(), right.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].axis, right[i].axis);
    EXPECT_NEAR(rows[i].calls / right[i].calls, 1, 1e-9);
    EXPECT_NEAR(rows[i].bytes / right[i].bytes, 1, 1e-9);
    EXPECT_NEAR(rows[i].seconds / right[i].seconds, 1, 1e-9);
  }
}

}  // namespace
}  // namespace lockstep::plan
