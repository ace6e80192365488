// The reference test of tensor parallelism: every layout against one rank.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/engine/test_values.h"
#include "lockstep/model/model.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;

using engine::testing::Outcome;

constexpr int64_t kGlobalBatch = 4;

Outcome train(const Case& c) { return engine::testing::train_layout(layout_for(c, kGlobalBatch), {.check_traffic = true}); }

void expect_same(const Outcome& actual, const Outcome& expected, double bound, config::Precision precision) {
  EXPECT_EQ(actual.steps[0].tokens, expected.steps[0].tokens);
  EXPECT_NEAR(actual.steps[0].loss, expected.steps[0].loss, bound * expected.steps[0].loss);
  EXPECT_NEAR(actual.steps[0].grad_norm, expected.steps[0].grad_norm, bound * expected.steps[0].grad_norm);
  testing::expect_same_gradients(actual.gradients, expected.gradients, bound);
  // bf16: a value that falls between two is rounded to either.
  const double rounding = precision == config::Precision::kBf16 ? 0x1p-7 : 0x1p-22;
  testing::expect_same_values(actual.values, expected.values, expected.gradients, {.gradient_bound = bound, .rounding = rounding});
}

std::string text(const Case& c) {
  return cat(c.preset, " tp ", c.tp, " dp ", c.dp, c.sequence_parallel ? " sequence parallel" : "",
             c.kind == config::DataParallel::kRing ? "" : " server", " S ", c.seq_len, " kv ", c.kv_heads, " V ",
             c.vocab_size, c.overlap ? "" : " no overlap");
}

void compare(Case c, double bound = 1e-5) {
  SCOPED_TRACE(text(c));
  Case one = c;
  one.dp = one.tp = 1;
  one.kind = config::DataParallel::kRing;
  one.micro_batch = kGlobalBatch;
  expect_same(train(c), train(one), bound, c.precision);
}

TEST(TensorParallel, EveryDegreeComputesWhatOneRankComputes) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const bool sequence_parallel : {true, false})
      for (const int tp : {2, 4}) {
        compare({.preset = preset, .dp = 1, .dropout = 0.1, .tp = tp, .sequence_parallel = sequence_parallel});
      }
  compare({.preset = "gpt2-test", .dp = 1, .dropout = 0.1, .tp = 3});
  compare({.preset = "gpt2-test", .dp = 1, .tp = 3, .sequence_parallel = false});
}

// 511 tokens over 2 and 4 ranks, 15 rows over 4, 7 over 2.
TEST(TensorParallel, UnevenVocabularyAndRows) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const bool sequence_parallel : {true, false}) {
      compare({.preset = preset, .dp = 1, .micro_batch = 1, .seq_len = 15, .dropout = 0.1, .tp = 4,
               .sequence_parallel = sequence_parallel, .vocab_size = 511});
      compare({.preset = preset, .dp = 1, .micro_batch = 1, .seq_len = 7, .tp = 2,
               .sequence_parallel = sequence_parallel, .vocab_size = 511});
    }
  // Five rows over four ranks: the last one holds none.
  compare({.preset = "gpt2-test", .dp = 1, .micro_batch = 1, .seq_len = 5, .dropout = 0.1, .tp = 4});
}

TEST(TensorParallel, RanksThatShareKeyValueHeads) {
  for (const int64_t kv_heads : {1, 2})
    for (const bool sequence_parallel : {true, false})
      compare({.preset = "llama-test", .dp = 1, .tp = 4, .sequence_parallel = sequence_parallel, .kv_heads = kv_heads});
  compare({.preset = "llama-test", .dp = 1, .tp = 3, .kv_heads = 3});
  compare({.preset = "llama-test", .dp = 1, .tp = 6, .kv_heads = 2});
}

// Two groups a layer, of which one is summed over tp too; the ledger is the predicted one. Uneven rows, shared heads, norms of heads.
TEST(TensorParallel, GroupsThatAreSummedOverOtherRanks) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const auto& [dp, tp] : {std::pair{1, 2}, {1, 4}, {2, 2}})
      for (const bool overlap : {true, false})
        compare({.preset = preset, .dp = dp, .micro_batch = 1, .overlap = overlap, .seq_len = 15, .dropout = 0.1, .tp = tp,
                 .row_groups = true, .vocab_size = 511});
  for (const char* preset : {"gpt2-test", "llama-test"}) {
    for (const int zero : {1, 2, 3}) compare({.preset = preset, .dp = 2, .micro_batch = 1, .tp = 2, .row_groups = true, .zero = zero});
    compare({.preset = preset, .dp = 1, .micro_batch = 1, .tp = 2, .row_groups = true, .offload = {.optimizer = true}});
  }
  compare({.preset = "llama-test", .dp = 2, .micro_batch = 1, .tp = 4, .row_groups = true, .kv_heads = 2});
  compare({.preset = "gpt2-test", .dp = 2, .micro_batch = 1, .tp = 2, .sequence_parallel = false, .row_groups = true});
  compare({.preset = "gpt2-test", .dp = 2, .kind = config::DataParallel::kParameterServer, .micro_batch = 1, .tp = 2, .row_groups = true});
}

TEST(TensorParallel, WithDataParallelismOfBothKinds) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const config::DataParallel kind : {config::DataParallel::kRing, config::DataParallel::kParameterServer})
      for (const bool overlap : {true, false}) {
        compare({.preset = preset, .dp = 2, .kind = kind, .micro_batch = 1, .overlap = overlap, .dropout = 0.1, .tp = 2,
                 .vocab_size = 511});
      }
  compare({.preset = "llama-test", .dp = 2, .micro_batch = 1, .tp = 4, .kv_heads = 2});
}

// Schedules that run I and W apart, W of a layer after I of all: the same gradients as B.
TEST(TensorParallel, WeightGradientsMayRunLater) {
  for (const bool sequence_parallel : {true, false}) {
    const Case c{.preset = "llama-test", .dp = 1, .tp = 2, .sequence_parallel = sequence_parallel};
    const program::Layout layout = layout_for(c, 2);
    lockstep::testing::run_ranks(2, [&](comm::World& world) {
      Groups groups(world, layout);
      parallel::TensorGroup tensor(*groups.tensor(), {.sequence_parallel = sequence_parallel});
      const nn::Microbatch microbatch = microbatches(layout, world.rank(), 0).at(0);
      const auto gradients = [&](bool apart) {
        ParameterStore store(layout.param_table(world.rank()), {});
        store.initialize(1);
        const auto layers = model::build_layers(layout.model, store, {.tensor = &tensor});
        std::vector<std::unique_ptr<nn::Saved>> saved(layers.size());
        at::Tensor x, dy;
        for (size_t i = 0; i < layers.size(); ++i) x = layers[i]->forward(x, microbatch, &saved[i]);
        for (size_t i = layers.size(); i-- > 0;)
          dy = apart ? layers[i]->backward_input(dy, *saved[i]) : layers[i]->backward(dy, *saved[i]);
        for (size_t i = 0; apart && i < layers.size(); ++i) layers[i]->backward_weight(*saved[i]);
        return store.gradients().slice(0, store.layout().numel).clone();
      };
      EXPECT_TRUE(at::equal(gradients(true), gradients(false)));
    });
  }
}

TEST(TensorParallel, MeasuredMemoryIsThePredictedOneWithinFivePercent) {
  install_memory_tracking();
  for (const char* preset : {"gpt2-test", "llama-test", "gpt2-10m"})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
      for (const bool sequence_parallel : {true, false})
        for (const bool overlap : {true, false}) {
          const Case c{.preset = preset, .dp = 1, .precision = precision, .overlap = overlap, .seq_len = 64,
                       .dropout = overlap ? 0.1 : 0, .tp = 2, .sequence_parallel = sequence_parallel};
          const program::Layout layout = layout_for(c, 4);
          lockstep::testing::run_ranks(2, [&](comm::World& world) {
            Groups groups(world, layout);
            Executor executor({.layout = layout}, groups);
            // A sum that comes early frees its buffer before the moment of most: the largest of some steps counts.
            for (int64_t step = 1; step <= 4; ++step)
              executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), step, 1e-3);
            const program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), world.rank());
            const program::MemoryBytes measured = executor.measured_memory();
            for (size_t i = 0; i < program::kNumMemoryCategories; ++i) {
              const auto expected = static_cast<double>(predicted.bytes[i]);
              EXPECT_NEAR(static_cast<double>(measured.bytes[i]), expected, 0.05 * expected)
                  << text(c) << " rank " << world.rank() << " "
                  << program::category_name(static_cast<MemoryCategory>(i));
            }
          });
        }
}

// Partial sums are rounded to bf16 before they are added over ranks: 2^-8 relative to the largest term.
TEST(TensorParallel, Bf16WithinItsRounding) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const bool sequence_parallel : {true, false})
      compare({.preset = preset, .dp = 1, .precision = config::Precision::kBf16, .tp = 2,
               .sequence_parallel = sequence_parallel},
              0.05);
}

}  // namespace
}  // namespace lockstep::engine
