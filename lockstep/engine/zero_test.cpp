// The stages of ZeRO among one another, to the bit: they move the same sums to other places.
#include <ATen/ops/abs.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <gtest/gtest.h>

#include <map>

#include "lockstep/base/text.h"
#include "lockstep/engine/test_training.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::Outcome;
using engine::testing::microbatches;

// After three steps.
Outcome train(const Case& c, int64_t global_batch, double max_grad_norm) {
  return engine::testing::train_layout(layout_for(c, global_batch), {.steps = 3, .max_grad_norm = max_grad_norm});
}

std::string text(const Case& c) {
  return cat(c.preset, " ", program::describe(layout_for(c)), " V ", c.vocab_size, c.overlap ? "" : " no overlap");
}

void expect_same_bits(const Outcome& actual, const Outcome& expected, bool norms) {
  for (size_t step = 0; step < expected.steps.size(); ++step) {
    EXPECT_EQ(actual.steps[step].loss, expected.steps[step].loss) << step;
    // The norm is a sum in fp64 over parts, which zero 0 adds in one piece.
    if (norms) {
      EXPECT_EQ(actual.steps[step].grad_norm, expected.steps[step].grad_norm) << step;
    }
  }
  for (const auto& [name, value] : expected.values) {
    EXPECT_TRUE(at::equal(actual.values.at(name), value)) << name;
    EXPECT_TRUE(at::equal(actual.gradients.at(name), expected.gradients.at(name))) << "gradient of " << name;
  }
}

Case stage(Case c, int zero, int replicate = 1) {
  c.zero = zero;
  c.dp_replicate = replicate;
  return c;
}

// One microbatch: every stage reduces the same values in the same order. 511 rows of the vocabulary divide by no number
// of ranks.
TEST(Zero, StagesHaveTheSameBits) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
      for (const auto& [dp, replicate] : {std::pair{2, 1}, {3, 1}, {4, 1}, {4, 2}}) {
        const Case base{.preset = preset, .dp = dp, .precision = precision, .dropout = 0.1, .vocab_size = 511};
        const Outcome first = train(stage(base, 1, replicate), 2 * dp, 0.05);
        for (const int zero : {2, 3}) {
          SCOPED_TRACE(text(stage(base, zero, replicate)));
          expect_same_bits(train(stage(base, zero, replicate), 2 * dp, 0.05), first, true);
        }
      }
}

// Over two ranks a sum has one order.
TEST(Zero, TwoRanksHaveTheBitsOfPlainDataParallelism) {
  for (const char* preset : {"gpt2-test", "llama-test"}) {
    const Case base{.preset = preset, .dp = 2, .dropout = 0.1, .vocab_size = 511};
    const Outcome plain = train(base, 4, 0);
    for (const int zero : {1, 2, 3}) {
      SCOPED_TRACE(text(stage(base, zero)));
      expect_same_bits(train(stage(base, zero), 4, 0), plain, false);
    }
  }
}

// How far ahead parameters are gathered, when they are dropped, and whether anything overlaps, moves no sum.
TEST(Zero, WhenParametersAreGatheredChangesNoBit) {
  const Case base = stage({.preset = "llama-test", .dp = 3, .dropout = 0.1}, 3);
  const auto run = [&](int prefetch, bool after_forward, bool after_microbatch, bool overlap) {
    std::map<std::string, at::Tensor> values;
    program::Layout layout = layout_for(base, 12);
    layout.prefetch = prefetch;
    layout.reshard_after_forward = after_forward;
    layout.reshard_after_microbatch = after_microbatch;
    layout.overlap = overlap;
    lockstep::testing::run_ranks(base.dp, [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout}, groups);
      for (int64_t step = 0; step < 2; ++step) executor.step(microbatches(layout, world.rank(), step), step + 1, 1e-3);
      for (int param = 0; param < static_cast<int>(executor.store().table().size()); ++param) {
        const at::Tensor value = executor.whole_value(param);
        if (world.rank() == 0) values[executor.store().table()[static_cast<size_t>(param)].name] = value.clone();
      }
    });
    return values;
  };
  const auto expected = run(1, true, true, true);
  for (const auto& [prefetch, after_forward, after_microbatch, overlap] :
       {std::tuple{0, true, true, true}, {3, true, true, true}, {1, false, true, true}, {1, false, false, true}, {1, true, true, false}})
    for (const auto& [name, value] : run(prefetch, after_forward, after_microbatch, overlap))
      EXPECT_TRUE(at::equal(value, expected.at(name))) << name << " prefetch " << prefetch << after_forward << after_microbatch;
}

// Loss and norm of three steps, and the gradients of the last, of accumulated microbatches, against one rank. Adam turns
// rounding of what is nearly zero into steps of either sign: gradients of the third step agree less.
TEST(Zero, EveryStageOverTpComputesWhatOneRankComputes) {
  for (const char* preset : {"gpt2-test", "llama-test"}) {
    const Outcome expected = train({.preset = preset, .dp = 1, .micro_batch = 8, .dropout = 0.1, .vocab_size = 511}, 8, 0.05);
    for (const int zero : {1, 2, 3})
      for (const auto& [dp, replicate] : {std::pair{2, 1}, {4, 2}})
        for (const auto& [sequence_parallel, row_groups] : {std::pair{true, false}, {false, false}, {true, true}}) {
          Case c = stage({.preset = preset, .dp = dp, .micro_batch = 1, .dropout = 0.1, .tp = 2, .vocab_size = 511}, zero, replicate);
          c.sequence_parallel = sequence_parallel;
          c.row_groups = row_groups;
          SCOPED_TRACE(cat(text(c), row_groups ? " row groups" : ""));
          const Outcome actual = train(c, 8, 0.05);
          ASSERT_EQ(actual.steps.size(), expected.steps.size());
          for (size_t step = 0; step < expected.steps.size(); ++step) {
            EXPECT_NEAR(actual.steps[step].loss, expected.steps[step].loss, 1e-5 * expected.steps[step].loss) << step;
            EXPECT_NEAR(actual.steps[step].grad_norm, expected.steps[step].grad_norm, 1e-5 * expected.steps[step].grad_norm) << step;
          }
          for (const auto& [name, gradient] : expected.gradients) {
            if (name.find("attention.k.bias") != std::string::npos) continue;  // zero but for rounding
            const at::Tensor error = at::sub(actual.gradients.at(name), gradient).abs().max();
            EXPECT_LE(error.item<double>(), 1e-4 * gradient.abs().max().item<double>()) << name;
          }
        }
  }
}

}  // namespace
}  // namespace lockstep::engine
