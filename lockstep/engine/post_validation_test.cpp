// Steps whose update goes ahead of the norm leave what those leave that wait for it, to the bit.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/program/passes/post_validation.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::engine {
namespace {

using program::ScheduleKind;
using testing::Case;
using testing::layout_for;
using testing::Outcome;
using testing::train_layout;

constexpr int64_t kSteps = 6;

Case pipeline(ScheduleKind kind, int pp, int virtual_stages) {
  return {.dp = 1, .dropout = 0.1, .pp = pp, .schedule = kind, .virtual_stages = virtual_stages, .blocks = 6};
}

program::Layout with_post_validation(program::Layout layout) {
  layout.pipeline.post_validation = true;
  return layout;
}

// A limit that lies between the norms of the steps.
double median_norm(const program::Layout& layout) {
  const Outcome free = train_layout(layout, {.steps = kSteps, .max_grad_norm = 0});
  std::vector<double> norms;
  for (const StepResult& step : free.steps) norms.push_back(step.grad_norm);
  std::ranges::sort(norms);
  return norms[norms.size() / 2];
}

int expect_same_bits(const Case& c, int64_t batch, double max_grad_norm) {
  const program::Layout layout = layout_for(c, batch);
  const Outcome expected = train_layout(layout, {.steps = kSteps, .max_grad_norm = max_grad_norm});
  const Outcome found =
      train_layout(with_post_validation(layout), {.steps = kSteps, .max_grad_norm = max_grad_norm, .may_pend = true});
  const std::string where = cat(program::describe(layout), ", limit ", max_grad_norm);
  EXPECT_EQ(found.steps.size(), expected.steps.size()) << where;
  for (size_t i = 0; i < std::min(found.steps.size(), expected.steps.size()); ++i) {
    EXPECT_EQ(found.steps[i].loss, expected.steps[i].loss) << where << " step " << i;
    EXPECT_EQ(found.steps[i].grad_norm, expected.steps[i].grad_norm) << where << " step " << i;
    EXPECT_EQ(found.steps[i].clip_factor, expected.steps[i].clip_factor) << where << " step " << i;
    EXPECT_EQ(found.steps[i].tokens, expected.steps[i].tokens) << where << " step " << i;
  }
  EXPECT_TRUE(found.copies_agree) << where;
  for (const auto& [name, value] : expected.values) EXPECT_TRUE(found.values.at(name).equal(value)) << where << " " << name;
  return found.taken_back;
}

TEST(PostValidation, SameBitsHoweverOftenAnUpdateIsTakenBack) {
  const std::vector<Case> cases = {pipeline(ScheduleKind::kZbH2, 2, 1), pipeline(ScheduleKind::kZbH2, 4, 1),
                                   pipeline(ScheduleKind::kZbV, 3, 2), pipeline(ScheduleKind::kOneFOneB, 3, 1),
                                   pipeline(ScheduleKind::kInterleaved, 2, 3), pipeline(ScheduleKind::kDualPipeV, 2, 2)};
  for (const Case& c : cases) {
    const double limit = median_norm(layout_for(c, 16));
    EXPECT_GT(expect_same_bits(c, 16, limit), 0) << "nothing was taken back";
  }
  EXPECT_EQ(expect_same_bits(cases[0], 16, 0), 0);
  EXPECT_EQ(expect_same_bits(cases[0], 16, 1e-3), 0);  // all are clipped: nobody hopes
}

TEST(PostValidation, WithOtherParallelism) {
  std::vector<Case> cases(5, pipeline(ScheduleKind::kZbV, 2, 2));
  cases[0].dp = 2;
  cases[1].dp = 2, cases[1].zero = 2, cases[1].precision = config::Precision::kBf16;
  cases[2].tp = 2;
  cases[3].dp = 2, cases[3].zero = 1, cases[3].schedule = ScheduleKind::kZbH2, cases[3].virtual_stages = 1;
  cases[4].tp = 2, cases[4].schedule = ScheduleKind::kZbH2, cases[4].virtual_stages = 1,
  cases[4].recompute.assign(6, arch::Recompute::kFull);
  for (const Case& c : cases) {
    const int64_t batch = 8 * c.dp;
    EXPECT_GT(expect_same_bits(c, batch, median_norm(layout_for(c, batch))), 0) << "nothing was taken back";
  }
}

// What is sent and held in a step is what was predicted of it, the copy of the states counted.
TEST(PostValidation, TrafficAndMemoryAsPredicted) {
  install_memory_tracking();
  Case c = pipeline(ScheduleKind::kZbV, 2, 2);
  c.dp = 2;
  const program::Layout layout = with_post_validation(layout_for(c, 16));
  lockstep::testing::run_ranks(layout.mesh.world_size(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .max_grad_norm = 0}, groups);
    groups.take_ledger();
    executor.step(testing::microbatches(layout, world.rank(), 0), 1, 1e-3, true);
    executor.settle();
    const program::Ledger predicted = program::predict_ledger(layout, executor.program(), world.rank());
    EXPECT_THAT(program::Ledger::difference(predicted, groups.take_ledger()), ::testing::IsEmpty());
    EXPECT_EQ(executor.measured_memory()[program::MemoryCategory::kOptimizer],
              program::predict_memory(layout, executor.program(), world.rank())[program::MemoryCategory::kOptimizer]);
  });
}

// It is found out in the next step, whose forward has begun: the weights are those before the step that went wrong.
TEST(PostValidation, WhatIsNotFiniteIsTakenBackAndTold) {
  const program::Layout layout = with_post_validation(layout_for(pipeline(ScheduleKind::kZbH2, 3, 1), 16));
  const Outcome before = train_layout(layout, {.steps = 2, .max_grad_norm = 0});
  std::mutex mutex;
  std::map<std::string, at::Tensor> values;
  lockstep::testing::run_ranks(3, [&](comm::World& world) {
    Groups groups(world, layout);
    int64_t step = 0;
    const auto poison = [&](const program::Action& action, ParameterStore& store) {
      if (step == 2 && world.rank() == 1 && action.kind == program::ActionKind::kNorm) store.grad(0).fill_(NAN);
    };
    Executor executor({.layout = layout, .max_grad_norm = 0, .before_action = poison}, groups);
    for (; step < 3; ++step) {
      const StepResult result = executor.step(testing::microbatches(layout, world.rank(), step), step + 1, 1e-3, true);
      EXPECT_TRUE(result.pending);
    }
    try {
      executor.step(testing::microbatches(layout, world.rank(), step), step + 1, 1e-3, true);
      ADD_FAILURE() << "nobody told";
    } catch (const DivergedError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("step 3: a gradient is not finite (rank 1: "));
    }
    for (int param = 0; param < static_cast<int>(executor.store().table().size()); ++param) {
      const at::Tensor value = executor.whole_value(param).clone();
      const std::lock_guard lock(mutex);
      values.emplace(executor.store().table()[static_cast<size_t>(param)].name, value);
    }
  });
  for (const auto& [name, value] : before.values) EXPECT_TRUE(values.at(name).equal(value)) << name;
}

}  // namespace
}  // namespace lockstep::engine
