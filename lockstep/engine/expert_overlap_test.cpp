// Blocks of experts in parts: two microbatches in turns leave the bits that one after the other leaves, in loss, loads, gradients and values.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/engine/test_experts.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::engine {
namespace {

using arch::Recompute;
using program::ScheduleKind;
using testing::Case;
using testing::experts;
using testing::kExpertBatch;
using testing::layout_for;
using testing::microbatches;
using testing::Outcome;
using testing::text_of;

void expect_same_bits(const Outcome& actual, const Outcome& expected) {
  ASSERT_EQ(actual.steps.size(), expected.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(actual.steps[i].loss, expected.steps[i].loss);
    EXPECT_EQ(actual.steps[i].grad_norm, expected.steps[i].grad_norm);
    EXPECT_EQ(actual.steps[i].loads, expected.steps[i].loads);
  }
  ASSERT_EQ(actual.values.size(), expected.values.size());
  for (const auto& [name, value] : expected.values) {
    EXPECT_TRUE(at::equal(actual.values.at(name), value)) << "value of " << name;
    EXPECT_TRUE(at::equal(actual.gradients.at(name), expected.gradients.at(name))) << "gradient of " << name;
  }
  EXPECT_TRUE(actual.copies_agree);
}

void expect_whole_bits(Case c) {
  SCOPED_TRACE(text_of(c));
  const testing::TrainingOptions options{.steps = 2, .check_traffic = true};
  const Outcome expected = train_layout(layout_for(c, kExpertBatch), options);
  c.overlap_experts = true;
  const program::Layout layout = layout_for(c, kExpertBatch);
  ASSERT_TRUE(std::ranges::any_of(program::make_program(layout).list(0),
                                  [](const program::Action& action) { return program::exchanges(action.kind); }));
  expect_same_bits(train_layout(layout, options), expected);
}

TEST(ExpertOverlap, OfMicrobatchesOneAfterTheOther) {
  for (const auto& [dp, ep] : {std::pair{2, 2}, {4, 4}, {4, 2}}) expect_whole_bits(experts({.dp = dp, .dropout = 0.1, .ep = ep}));
  expect_whole_bits(experts({.dp = 2, .precision = config::Precision::kBf16, .ep = 2, .shared_experts = 1}));
}

TEST(ExpertOverlap, BesideTensorParallelism) {
  for (const bool sequence_parallel : {true, false})
    for (const int64_t seq_len : {16, 15}) {
      expect_whole_bits(experts({.dp = 1, .seq_len = seq_len, .tp = 2, .sequence_parallel = sequence_parallel, .ep = 2}));
      expect_whole_bits(experts(
          {.dp = 2, .seq_len = seq_len, .tp = 2, .sequence_parallel = sequence_parallel, .ep = 2, .etp = 2, .shared_experts = 1}));
    }
}

TEST(ExpertOverlap, InPipelines) {
  for (const ScheduleKind schedule : {ScheduleKind::kInterleaved, ScheduleKind::kZbV, ScheduleKind::kDualPipeV}) {
    expect_whole_bits(experts({.dp = 2, .dropout = 0.1, .pp = 2, .schedule = schedule, .virtual_stages = 2, .ep = 2}));
    expect_whole_bits(experts({.dp = 1, .tp = 2, .pp = 2, .schedule = schedule, .virtual_stages = 2, .ep = 2}));
  }
}

TEST(ExpertOverlap, WithStatesSharedOutAndOffTheDevice) {
  for (const int zero : {1, 2}) expect_whole_bits(experts({.dp = 4, .zero = zero, .ep = 2}));
  expect_whole_bits(experts({.dp = 2, .offload = {.optimizer = true}, .ep = 2}));
}

TEST(ExpertOverlap, ComputedAgain) {
  for (const Recompute choice : {Recompute::kSelective, Recompute::kFull})
    for (Case c : {experts({.dp = 2, .dropout = 0.1, .ep = 2, .shared_experts = 1}),
                   experts({.dp = 2, .pp = 2, .schedule = ScheduleKind::kDualPipeV, .virtual_stages = 2, .ep = 2})}) {
      c.recompute.assign(static_cast<size_t>(layout_for(c, kExpertBatch).model.layers), choice);
      expect_whole_bits(c);
    }
}

// What is alive between two parts is predicted as a bound, as all that experts keep.
TEST(ExpertOverlap, MeasuredMemoryIsWithinThePredictedBound) {
  install_memory_tracking();
  for (Case c : {experts({.dp = 2, .seq_len = 64, .ep = 2}), experts({.dp = 2, .seq_len = 64, .tp = 2, .ep = 2, .etp = 2, .shared_experts = 1}),
                 experts({.dp = 2, .seq_len = 64, .pp = 2, .schedule = ScheduleKind::kInterleaved, .virtual_stages = 2, .ep = 2})}) {
    c.overlap_experts = true;
    const program::Layout layout = layout_for(c, kExpertBatch);
    lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout}, groups);
      for (int64_t step = 1; step <= 2; ++step)
        executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), step, 1e-3);
      const program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), world.rank());
      const program::MemoryBytes measured = executor.measured_memory();
      for (size_t i = 0; i < program::kNumMemoryCategories; ++i) {
        const std::string where = cat(text_of(c), " rank ", world.rank(), " ", program::category_name(static_cast<MemoryCategory>(i)));
        EXPECT_LE(static_cast<double>(measured.bytes[i]), 1.05 * static_cast<double>(predicted.bytes[i])) << where;
      }
      EXPECT_LE(static_cast<double>(measured.peak), 1.05 * static_cast<double>(predicted.peak)) << text_of(c);
    });
  }
}

}  // namespace
}  // namespace lockstep::engine
