// Whole steps of the engine on the GPU, ranks as threads that share it, against the same steps of one rank on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/test_training.h"
#include "support/tensors.h"

namespace lockstep::engine {
namespace {

using arch::Recompute;
using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::Outcome;
using lockstep::testing::gpu_device;
using program::ScheduleKind;

constexpr int64_t kGlobalBatch = 4;
constexpr int64_t kSteps = 2;

// Few rows: on the emulated GPU the threads of a kernel take turns.
Case small(Case c) {
  c.micro_batch = 1;
  c.seq_len = 8;
  return c;
}

Outcome train(const Case& c, at::Device device) {
  return engine::testing::train_layout(layout_for(c, kGlobalBatch), {.steps = kSteps, .device = device});
}

// Without what bounds or fills messages: one rank sends none.
config::MoeSection moe_alone(config::MoeSection moe) {
  moe.static_buffers = false;
  moe.imbalance_limit.reset();
  return moe;
}

// The model of a case, whole, on one rank of the CPU.
Case alone(const Case& c) {
  return {.preset = c.preset, .dp = 1, .precision = c.precision, .micro_batch = kGlobalBatch, .seq_len = c.seq_len,
          .dropout = c.dropout, .blocks = c.blocks, .moe = moe_alone(c.moe)};
}

struct Bounds {
  double loss, gradient;
};
constexpr Bounds kFp32{.loss = 1e-5, .gradient = 1e-4};
// 8 bits: GPU and CPU round in other places, by up to 2^-9 of an operator's result.
constexpr Bounds kBf16{.loss = 0.01, .gradient = 0.1};

void expect_same(const Outcome& actual, const Outcome& expected, const Bounds& bounds) {
  ASSERT_EQ(actual.steps.size(), expected.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_NEAR(actual.steps[i].loss, expected.steps[i].loss, bounds.loss * expected.steps[i].loss) << "step " << i;
    EXPECT_NEAR(actual.steps[i].grad_norm, expected.steps[i].grad_norm, 10 * bounds.loss * expected.steps[i].grad_norm);
    EXPECT_EQ(actual.steps[i].tokens, expected.steps[i].tokens);
  }
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    if (name.find("attention.k.bias") != std::string::npos) continue;  // zero but for rounding
    lockstep::testing::expect_close(actual.gradients.at(name), gradient, name, bounds.gradient);
  }
  EXPECT_TRUE(actual.copies_agree);
}

void check(const std::vector<Case>& cases) {
  for (const Case& large : cases) {
    const Case c = small(large);
    SCOPED_TRACE(cat(c.preset, " ", program::describe(layout_for(c, kGlobalBatch))));
    expect_same(train(c, gpu_device()), train(alone(c), at::kCPU), c.precision == config::Precision::kFp32 ? kFp32 : kBf16);
  }
}

TEST(Steps, OfOneRank) {
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
    for (const char* preset : {"gpt2-test", "llama-test"})
      check({{.preset = preset, .dp = 1, .precision = precision, .dropout = 0.1}});
}

TEST(Steps, OfDataParallelRanks) {
  check({{.preset = "gpt2-test", .dropout = 0.1},
         {.preset = "llama-test", .overlap = false},
         {.preset = "llama-test", .kind = config::DataParallel::kParameterServer}});
}

TEST(Steps, OfEveryStageOfZero) {
  for (const int zero : {1, 2, 3})
    check({{.preset = "llama-test", .zero = zero}, {.preset = "gpt2-test", .dropout = 0.1, .zero = zero}});
  check({{.preset = "llama-test", .dp = 4, .zero = 3, .dp_replicate = 2},
         {.preset = "llama-test", .precision = config::Precision::kBf16, .zero = 2}});
}

TEST(Steps, OfTensorParallelRanks) {
  for (const bool sequence_parallel : {true, false})
    check({{.preset = "gpt2-test", .dp = 1, .dropout = 0.1, .tp = 2, .sequence_parallel = sequence_parallel},
           {.preset = "llama-test", .tp = 2, .sequence_parallel = sequence_parallel, .zero = 3}});
}

TEST(Steps, OfPipelines) {
  for (const ScheduleKind schedule : {ScheduleKind::kOneFOneB, ScheduleKind::kZbH1})
    check({{.preset = "gpt2-test", .dp = 1, .pp = 2, .schedule = schedule, .blocks = 4},
           {.preset = "llama-test", .zero = 1, .pp = 2, .schedule = schedule}});
  check({{.preset = "llama-test", .dp = 1, .pp = 2, .schedule = ScheduleKind::kZbV, .virtual_stages = 2, .blocks = 4}});
}

// One call after the other, messages of one size, and rounds.
TEST(Steps, OfExperts) {
  const config::MoeSection losses{.aux_coefficient = 0.02, .z_coefficient = 0.003};
  config::MoeSection slots = losses, rounds = losses;
  slots.static_buffers = true;
  config::MoeSection few = slots;
  few.capacity_factor = 0.75;
  rounds.imbalance_limit = 1;
  check({{.preset = "mixtral-test", .blocks = 1, .ep = 2, .moe = losses},
         {.preset = "deepseek-test", .blocks = 2, .ep = 2, .moe = slots},
         {.preset = "deepseek-test", .blocks = 2, .ep = 2, .moe = rounds},
         {.preset = "deepseek-test", .dp = 1, .tp = 2, .blocks = 2, .ep = 2},
         {.preset = "mixtral-test", .dp = 1, .tp = 2, .blocks = 1, .ep = 2, .moe = few}});
}

TEST(Steps, WithRecomputation) {
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull})
    check({{.preset = "gpt2-test", .dp = 1, .dropout = 0.1, .recompute = {2, recompute}},
           {.preset = "llama-test", .zero = 3, .recompute = {3, recompute}}});
}

TEST(Steps, WithStatesAndActivationsOnTheHost) {
  const std::vector<Recompute> full(3, Recompute::kFull);
  check({{.preset = "llama-test", .dp = 1, .offload = {.optimizer = true}},
         {.preset = "llama-test", .dp = 1, .offload = {.optimizer = true, .parameters = true}},
         {.preset = "llama-test", .dp = 1, .recompute = full, .offload = {.activations = true}},
         {.preset = "llama-test", .zero = 3, .recompute = full,
          .offload = {.optimizer = true, .parameters = true, .activations = true}},
         {.preset = "llama-test", .dp = 1, .precision = config::Precision::kBf16, .recompute = full,
          .offload = {.optimizer = true, .parameters = true, .activations = true}}});
}

// The kernel that looks for it runs on the device, and LOSS reads what it found.
TEST(Steps, AreLeftOutForAGradientThatIsNotFinite) {
  const program::Layout layout = layout_for(small({.preset = "llama-test"}), kGlobalBatch);
  lockstep::testing::run_ranks(2, [&](comm::World& world) {
    int64_t step = 1;
    const auto spoil = [&](const program::Action& action, ParameterStore& store) {
      if (step == 2 && world.rank() == 1 && action.kind == program::ActionKind::kReduceGrad) store.grad(0).fill_(NAN);
    };
    Groups groups(world, layout);
    Executor executor({.layout = layout, .device = gpu_device(), .skip_nonfinite = true, .before_action = spoil}, groups);
    const auto run = [&] {
      return executor.step(engine::testing::microbatches(layout, world.rank(), step, gpu_device()), step, 1e-3);
    };
    EXPECT_EQ(run().skipped, "");
    const at::Tensor before = executor.whole_value(0).cpu().clone();
    step = 2;
    EXPECT_EQ(run().skipped, cat("rank 1: ", executor.store().table()[0].name));
    EXPECT_TRUE(executor.whole_value(0).cpu().equal(before));
    step = 3;
    EXPECT_EQ(run().skipped, "");
    EXPECT_FALSE(executor.whole_value(0).cpu().equal(before));
  });
}

}  // namespace
}  // namespace lockstep::engine
