#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/engine/test_values.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;
using engine::testing::Outcome;

Outcome train(const Case& c, int64_t steps) { return engine::testing::train_layout(layout_for(c), {.steps = steps}); }

TEST(Executor, EveryLayoutComputesWhatOneRankComputes) {
  for (const char* preset : {"gpt2-test", "llama-test"}) {
    const Case one{.preset = preset, .dp = 1, .micro_batch = 24, .dropout = 0.1};
    const Outcome expected = train(one, 1);
    for (const config::DataParallel kind : {config::DataParallel::kRing, config::DataParallel::kParameterServer})
      for (const int dp : {1, 2, 3, 4})
        for (const bool overlap : {true, false}) {
          Case c = one;
          c.dp = dp;
          c.kind = kind;
          c.micro_batch = 2;
          c.overlap = overlap;
          const Outcome actual = train(c, 1);
          EXPECT_NEAR(actual.steps[0].loss, expected.steps[0].loss, 1e-5 * expected.steps[0].loss);
          EXPECT_NEAR(actual.steps[0].grad_norm, expected.steps[0].grad_norm, 1e-5 * expected.steps[0].grad_norm);
          EXPECT_EQ(actual.steps[0].tokens, expected.steps[0].tokens);
          engine::testing::expect_same_gradients(actual.gradients, expected.gradients, 1e-5, cat(preset, " dp ", dp));
        }
  }
}

// Stages of ZeRO, with and without replicas of the groups that share out states.
std::vector<Case> sharded_cases(const Case& base) {
  std::vector<Case> cases;
  for (const int zero : {1, 2, 3})
    for (const auto& [dp, replicate] : {std::pair{2, 1}, {3, 1}, {4, 1}, {4, 2}}) {
      Case c = base;
      c.zero = zero;
      c.dp = dp;
      c.dp_replicate = replicate;
      cases.push_back(c);
    }
  return cases;
}

TEST(Executor, EveryStageOfZeroComputesWhatOneRankComputes) {
  for (const char* preset : {"gpt2-test", "llama-test"}) {
    const Outcome expected = train({.preset = preset, .dp = 1, .micro_batch = 24, .dropout = 0.1}, 1);
    for (Case c : sharded_cases({.preset = preset, .dropout = 0.1}))
      for (const bool overlap : {true, false}) {
        c.overlap = overlap;
        const Outcome actual = train(c, 1);
        const std::string where = cat(preset, " ", program::describe(layout_for(c)));
        EXPECT_NEAR(actual.steps[0].loss, expected.steps[0].loss, 1e-5 * expected.steps[0].loss) << where;
        EXPECT_NEAR(actual.steps[0].grad_norm, expected.steps[0].grad_norm, 1e-5 * expected.steps[0].grad_norm) << where;
        engine::testing::expect_same_gradients(actual.gradients, expected.gradients, 1e-5, where);
      }
  }
}

// Each of four parts is rounded by up to 2^-9 of itself, and is about as large as their sum; the sum itself is fp32.
TEST(Executor, GradientsMayTravelInBf16) {
  const Case c{.dp = 4, .zero = 3};
  const Outcome expected = train(c, 1);
  for (Case other : sharded_cases({})) {
    other.reduce_precision = config::Precision::kBf16;
    engine::testing::expect_same_gradients(train(other, 1).gradients, expected.gradients, 4 * 0x1p-9, program::describe(layout_for(other)));
  }
}

TEST(Executor, TheSameRunGivesTheSameBits) {
  for (const int dp : {1, 3}) {
    const Outcome first = train({.dp = dp, .dropout = 0.1}, 3), second = train({.dp = dp, .dropout = 0.1}, 3);
    for (const auto& [name, value] : first.values) EXPECT_TRUE(at::equal(value, second.values.at(name))) << name;
    for (size_t i = 0; i < first.steps.size(); ++i) EXPECT_EQ(first.steps[i].loss, second.steps[i].loss);
  }
}

TEST(Executor, ParameterServerAndRingAgreeAfterSeveralSteps) {
  const Outcome ring = train({.dp = 3}, 3), server = train({.dp = 3, .kind = config::DataParallel::kParameterServer}, 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(ring.steps[i].loss, server.steps[i].loss, 1e-5);
}

TEST(Executor, RecordedLedgerIsThePredictedOne) {
  for (const config::DataParallel kind : {config::DataParallel::kRing, config::DataParallel::kParameterServer})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
      for (const int dp : {1, 2, 3, 4})
        engine::testing::train_layout(layout_for({.dp = dp, .kind = kind, .precision = precision}), {.check_traffic = true});
}

TEST(Executor, RecordedLedgerIsThePredictedOneAtEveryStageOfZero) {
  for (const config::Precision reduce : {config::Precision::kFp32, config::Precision::kBf16})
    for (const Case& c : sharded_cases({.preset = "gpt2-test"})) {
      Case wired = c;
      wired.reduce_precision = reduce;
      engine::testing::train_layout(layout_for(wired), {.check_traffic = true});
    }
}

TEST(Executor, MeasuredMemoryIsThePredictedOneWithinFivePercent) {
  install_memory_tracking();
  for (const char* preset : {"gpt2-test", "llama-test", "gpt2-10m"})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
      for (const auto& [kind, dp] : {std::pair{config::DataParallel::kRing, 1}, {config::DataParallel::kRing, 2},
                                     {config::DataParallel::kParameterServer, 2}}) {
        const Case c{.preset = preset, .dp = dp, .kind = kind, .precision = precision, .seq_len = 64};
        const program::Layout layout = layout_for(c, 8);
        lockstep::testing::run_ranks(dp, [&](comm::World& world) {
          Groups groups(world, layout);
          Executor executor({.layout = layout}, groups);
          executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), 1, 1e-3);
          const program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), world.rank());
          const program::MemoryBytes measured = executor.measured_memory();
          for (size_t i = 0; i < program::kNumMemoryCategories; ++i) {
            const auto expected = static_cast<double>(predicted.bytes[i]);
            EXPECT_NEAR(static_cast<double>(measured.bytes[i]), expected, 0.05 * expected)
                << preset << " " << program::describe(layout) << " rank " << world.rank() << " "
                << program::category_name(static_cast<MemoryCategory>(i));
          }
        });
      }
}

TEST(Executor, ASteadyStepTakesNoNewMemory) {
  install_memory_tracking();
  const Case base{.preset = "gpt2-10m", .dp = 1, .seq_len = 64};
  Case bf16 = base, sharded = base;
  bf16.precision = config::Precision::kBf16;
  sharded.zero = 3;
  sharded.dp = 2;
  for (const Case& c : {base, bf16, sharded}) {
    const program::Layout layout = layout_for(c, 8);
    lockstep::testing::run_ranks(c.dp, [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout}, groups);
      const auto step = [&](int64_t index) {
        executor.step(executor.load([&] { return microbatches(layout, world.rank(), index); }), index + 1, 1e-3);
        groups.world().barrier({.id = program::named_call("step")}).wait();
      };
      for (int64_t index = 0; index < 6; ++index) step(index);
      const int64_t before = fresh_blocks();
      for (int64_t index = 6; index < 9; ++index) step(index);
      // Ranks that are threads of one process share the blocks: how far apart they are says how many are out at once.
      EXPECT_LE(fresh_blocks(), before + (c.dp > 1 ? 8 : 0));
    });
  }
}

// No device is asked for it in the middle of a step.
TEST(Executor, ValidTargetsAreCountedByWhoMakesTheMicrobatch) {
  const program::Layout layout = layout_for({.dp = 1});
  lockstep::testing::run_ranks(1, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    auto batch = microbatches(layout, 0, 0);
    for (nn::Microbatch& microbatch : batch) microbatch.valid_targets = -1;
    EXPECT_THROW(executor.step(batch, 1, 1e-3), InternalError);
  });
}

TEST(Executor, WorldOfAnotherSizeIsRefused) {
  EXPECT_THROW(lockstep::testing::run_ranks(2,
                                            [](comm::World& world) {
                                              Groups groups(world, layout_for({.dp = 3}));
                                            }),
               ConfigError);
}

}  // namespace
}  // namespace lockstep::engine
