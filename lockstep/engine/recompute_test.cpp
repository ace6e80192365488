// Recomputation in a step of the engine, by block and over tensor parallelism: no bit changes, and what is communicated
// and kept is as predicted.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_steps.h"
#include "lockstep/model/model.h"
#include "lockstep/program/predict/traffic.h"
#include "support/recompute.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using arch::Recompute;
using engine::testing::Case;
using engine::testing::microbatches;
using Choices = std::vector<Recompute>;

constexpr int64_t kGlobalBatch = 4;

// Blocks take their choices in turn.
program::Layout layout_with(const Case& c, const Choices& blocks) {
  program::Layout layout = engine::testing::layout_for(c, kGlobalBatch);
  for (int64_t i = 0; !blocks.empty() && i < layout.model.layers; ++i)
    layout.recompute.push_back(blocks[static_cast<size_t>(i) % blocks.size()]);
  return layout;
}

// Of every rank after two steps: losses, gradients and parameters.
struct Outcome {
  std::map<int, std::vector<double>> losses;
  std::map<int, std::vector<at::Tensor>> tensors;
};

Outcome train(const Case& c, const Choices& blocks) {
  Outcome outcome;
  std::mutex mutex;
  const program::Layout layout = layout_with(c, blocks);
  lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .max_grad_norm = 0.05}, groups);
    std::vector<double> losses;
    std::vector<at::Tensor> tensors;
    for (int64_t step = 1; step <= 2; ++step) {
      groups.take_ledger();
      losses.push_back(executor.step(microbatches(layout, world.rank(), step), step, 1e-3).loss);
      const program::Ledger predicted = program::predict_ledger(layout, executor.program(), world.rank());
      EXPECT_THAT(program::Ledger::difference(predicted, groups.take_ledger()), ::testing::IsEmpty());
    }
    for (int param = 0; param < static_cast<int>(executor.store().table().size()); ++param) {
      tensors.push_back(executor.whole_gradient(param).clone());
      tensors.push_back(executor.whole_value(param).clone());
    }
    const std::lock_guard lock(mutex);
    outcome.losses[world.rank()] = losses;
    outcome.tensors[world.rank()] = tensors;
  });
  return outcome;
}

const std::vector<Choices> kChoices = {
    {Recompute::kSelective}, {Recompute::kFull}, {Recompute::kNone, Recompute::kFull, Recompute::kSelective}};

void expect_same_bits(const Case& c) {
  const Outcome expected = train(c, {});
  for (const Choices& blocks : kChoices) {
    SCOPED_TRACE(cat(c.preset, " dp ", c.dp, " tp ", c.tp, c.sequence_parallel ? " sequence parallel" : "",
                     " zero ", c.zero, c.overlap ? "" : " no overlap", " dropout ", c.dropout, " choice ",
                     static_cast<int>(blocks.back())));
    const Outcome outcome = train(c, blocks);
    EXPECT_EQ(outcome.losses, expected.losses);
    for (const auto& [rank, tensors] : expected.tensors)
      for (size_t i = 0; i < tensors.size(); ++i)
        EXPECT_TRUE(at::equal(outcome.tensors.at(rank)[i], tensors[i])) << "rank " << rank << " tensor " << i;
  }
}

TEST(Recompute, OneRank) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
      expect_same_bits({.preset = preset, .dp = 1, .precision = precision, .dropout = 0.1});
}

TEST(Recompute, DataParallel) {
  for (const config::DataParallel kind : {config::DataParallel::kRing, config::DataParallel::kParameterServer})
    expect_same_bits({.dp = 2, .kind = kind, .micro_batch = 1, .dropout = 0.1});
}

TEST(Recompute, TensorAndSequenceParallel) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const bool sequence_parallel : {true, false})
      for (const bool overlap : {true, false})
        expect_same_bits({.preset = preset, .dp = 1, .overlap = overlap, .dropout = 0.1, .tp = 2,
                          .sequence_parallel = sequence_parallel});
  expect_same_bits({.dp = 1, .micro_batch = 1, .seq_len = 15, .dropout = 0.1, .tp = 4});  // uneven rows
  expect_same_bits({.preset = "llama-test", .dp = 2, .micro_batch = 1, .tp = 2});
}

TEST(Recompute, MeasuredMemoryIsThePredictedOneWithinFivePercent) {
  install_memory_tracking();
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
      for (const int tp : {1, 2})
        for (const bool sequence_parallel : {true, false})
          for (const Choices& blocks : kChoices) {
            if (tp == 1 && !sequence_parallel) continue;
            const Case c{.preset = preset, .dp = 1, .precision = precision, .overlap = sequence_parallel, .seq_len = 64,
                         .dropout = sequence_parallel ? 0.1 : 0, .tp = tp, .sequence_parallel = sequence_parallel};
            const program::Layout layout = layout_with(c, blocks);
            lockstep::testing::run_ranks(tp, [&](comm::World& world) {
              Groups groups(world, layout);
              Executor executor({.layout = layout}, groups);
              executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), 1, 1e-3);
              const program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), world.rank());
              const program::MemoryBytes measured = executor.measured_memory();
              for (const MemoryCategory category : {MemoryCategory::kActivations, MemoryCategory::kBuffers}) {
                const auto expected = static_cast<double>(predicted[category]);
                EXPECT_NEAR(static_cast<double>(measured[category]), expected, 0.05 * expected)
                    << preset << " tp " << tp << (sequence_parallel ? " sequence parallel " : " ")
                    << static_cast<int>(precision) << " rank " << world.rank() << " choice "
                    << static_cast<int>(blocks.back()) << " " << program::category_name(category);
              }
            });
          }
}

TEST(Recompute, ShardedStates) {
  for (const int zero : {2, 3})
    expect_same_bits({.preset = "llama-test", .dp = 2, .micro_batch = 1, .dropout = 0.1, .zero = zero});
  expect_same_bits({.dp = 2, .micro_batch = 1, .dropout = 0.1, .tp = 2, .zero = 3});
}

// Schedules that run I and W apart.
TEST(Recompute, WeightGradientsMayRunLaterOverTensorParallelism) {
  for (const bool sequence_parallel : {true, false}) {
    const Case c{.preset = "llama-test", .dp = 1, .dropout = 0.1, .tp = 2, .sequence_parallel = sequence_parallel};
    const program::Layout layout = layout_with(c, {});
    lockstep::testing::run_ranks(2, [&](comm::World& world) {
      Groups groups(world, layout);
      parallel::TensorGroup tensor(*groups.tensor(), {.sequence_parallel = sequence_parallel});
      const nn::Microbatch microbatch = microbatches(layout, world.rank(), 0).at(0);
      const auto gradients = [&](Choices blocks, lockstep::testing::WeightGradients when) {
        ParameterStore store(layout.param_table(world.rank()), {});
        store.initialize(1);
        const auto layers = model::build_layers(layout.model, store, {.tensor = &tensor});
        lockstep::testing::forward_backward(layers, microbatch, blocks, when);
        return store.gradients().slice(0, store.layout().numel).clone();
      };
      const at::Tensor expected = gradients({}, lockstep::testing::WeightGradients::kInB);
      for (const Recompute choice : {Recompute::kSelective, Recompute::kFull})
        EXPECT_TRUE(at::equal(gradients(Choices(static_cast<size_t>(layout.model.layers), choice),
                                        lockstep::testing::WeightGradients::kAfterAllInputs),
                              expected));
    });
  }
}

}  // namespace
}  // namespace lockstep::engine
