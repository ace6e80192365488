// Muon of experts that no rank has whole, against one rank that has all; calls and states as predicted.
#include <ATen/ops/abs.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/test_experts.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::engine {
namespace {

using testing::Case;
using testing::kExpertBatch;
using testing::layout_for;
using testing::microbatches;
using testing::Outcome;

Case muon(Case c) {
  c = testing::experts(c);
  c.optimizer = config::OptimizerKind::kMuon;
  c.ns_precision = config::Precision::kFp32;
  return c;
}

// Cut over etp, shared out over edp_shard, both; among ranks of tp, in copies, in stages, on the host.
std::vector<Case> layouts() {
  std::vector<Case> all = {{.dp = 2, .etp = 2},
                           {.dp = 1, .tp = 2, .etp = 2},
                           {.dp = 2, .tp = 2, .ep = 2, .etp = 2},
                           {.dp = 2, .tp = 2, .sequence_parallel = false, .etp = 4},
                           {.dp = 2, .zero = 1, .pp = 2, .etp = 2}};
  for (const int zero : {1, 2, 3}) {
    all.push_back({.dp = 4, .zero = zero, .ep = 2});
    all.push_back({.dp = 4, .zero = zero, .etp = 2});
    all.push_back({.dp = 3, .zero = zero});
    all.push_back({.dp = 4, .zero = zero, .dp_replicate = 2, .ep = 2, .etp = 2});
    all.push_back({.dp = 2, .tp = 2, .zero = zero, .etp = 2});
    all.push_back({.dp = 1, .tp = 2, .zero = zero});
    all.push_back({.dp = 4, .zero = zero, .offload = {.optimizer = true, .parameters = zero == 3}, .ep = 2});
  }
  for (Case& c : all) {
    c.blocks = 2;
    c = muon(c);
  }
  return all;
}

program::Layout layout_of(const Case& c) { return layout_for(c, c.dp == 3 ? 9 : kExpertBatch); }

// Of what Muon updates: about 2e-4 an element and step.
void expect_same_matrices(const program::Layout& layout, const Outcome& actual, const Outcome& expected) {
  EXPECT_TRUE(actual.copies_agree);
  const program::Layout whole = program::reference_layout(layout);
  for (const arch::ParamSpec& spec : whole.param_table(0)) {
    if (!spec.update.optimizer->whole_matrix) continue;
    const at::Tensor difference = at::sub(actual.values.at(spec.name), expected.values.at(spec.name));
    EXPECT_LE(difference.abs().max().item<double>(), 2e-5) << spec.name;
  }
}

Outcome alone(const Case& c, const program::Layout& layout, const testing::TrainingOptions& options) {
  program::Layout one = layout_for(testing::twin_of(c), layout.global_batch);
  one.optimizer = layout.optimizer;
  one.micro_batch = layout.global_batch;
  return testing::train_layout(one, options);
}

TEST(ExpertMatrices, EveryLayoutComputesWhatOneRankComputes) {
  for (const Case& c : layouts()) {
    SCOPED_TRACE(testing::text_of(c));
    const program::Layout layout = layout_of(c);
    const Outcome actual = testing::train_layout(layout, {.steps = 2, .check_traffic = true});
    expect_same_matrices(layout, actual, alone(c, layout, {.steps = 2}));
  }
}

// Whole on every rank of tp, each with its part of the sum, and shared out among them too.
TEST(ExpertMatrices, RoutersOfRowGroups) {
  const Case c = muon({.dp = 2, .tp = 2, .row_groups = true, .zero = 1, .blocks = 2, .ep = 2});
  program::Layout layout = layout_of(c);
  layout.optimizer.rules.list.push_back({.of = config::ParameterClass::kRouter, .optimizer = config::OptimizerKind::kMuon});
  const Outcome actual = testing::train_layout(layout, {.steps = 2, .check_traffic = true});
  expect_same_matrices(layout, actual, alone(c, layout, {.steps = 2}));
}

TEST(ExpertMatrices, StatesAreAsPredicted) {
  install_memory_tracking();
  for (const Case& c : layouts()) {
    const program::Layout layout = layout_of(c);
    SCOPED_TRACE(testing::text_of(c));
    lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout}, groups);
      executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), 1, 1e-3);
      const program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), world.rank());
      EXPECT_EQ(executor.measured_memory()[MemoryCategory::kOptimizer], predicted[MemoryCategory::kOptimizer]);
    });
  }
}

// A unit's states come from disk before its momentum takes the gradient.
TEST(ExpertMatrices, StatesMayLieOnDisk) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / cat("expert_muon_", getpid());
  const Case c = muon({.dp = 2, .zero = 1, .offload = {.optimizer = true}, .blocks = 2});
  program::Layout layout = layout_of(c);
  const Outcome expected = testing::train_layout(layout, {.steps = 2});
  testing::put_on_disk(layout);
  const Outcome actual = testing::train_layout(layout, {.steps = 2, .disk_path = folder});
  for (const auto& [name, value] : expected.values) EXPECT_TRUE(at::equal(actual.values.at(name), value)) << name;
}

}  // namespace
}  // namespace lockstep::engine
