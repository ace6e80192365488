// Sharded states where the arithmetic of parts is easy to get wrong: several steps, uneven pieces, parts of padding alone,
// axes of one rank. Every layout against one rank.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "lockstep/base/text.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/engine/test_values.h"
#include "lockstep/program/verify/verify.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;

constexpr double kBound = 1e-5;
constexpr int64_t kSteps = 3;
// The epsilon is far above the rounding of a gradient, so that an update follows the gradient and not its rounding.
const config::OptimizerSection kAdamW{.weight_decay = 0.1, .eps = 1e-3};

// Evaluation over the first microbatch of the twin, after the last step.
struct Outcome : engine::testing::Outcome {
  double evaluation = 0;
};

// Elements of a part that belong to no parameter.
void expect_zero_padding(const at::Tensor& part, const std::vector<arch::ShardSlot>& slots, const std::string& what) {
  at::Tensor rest = part.clone();
  for (const arch::ShardSlot& slot : slots) rest.narrow(0, slot.offset, slot.numel).zero_();
  EXPECT_EQ(rest.ne(0).sum().item<int64_t>(), 0) << what;
}

void expect_zero_padding(ParameterStore& store) {
  for (size_t unit = 0; unit < store.layout().units.size(); ++unit) {
    if (!store.options().layout.offload.parameters)
      expect_zero_padding(store.compute_part(unit), store.slots(unit), cat("compute copy of unit ", unit));
    expect_zero_padding(store.value_part(unit), store.slots(unit), cat("values of unit ", unit));
    expect_zero_padding(store.grad_part(unit), store.slots(unit), cat("gradient of unit ", unit));
  }
}

using Change = std::function<void(program::Layout& layout)>;

Outcome train(const Case& c, int64_t global_batch, const Change& change) {
  Outcome outcome;
  program::Layout layout = layout_for(c, global_batch);
  layout.optimizer = kAdamW;
  change(layout);
  program::Layout one = program::reference_layout(layout);
  one.micro_batch = global_batch;
  const auto evaluate = [&](Executor& executor, int rank, int64_t index) {
    const auto [sum, tokens] = executor.evaluate(microbatches(one, 0, index).at(0));
    if (rank == 0) outcome.evaluation = sum / static_cast<double>(tokens);
  };
  static_cast<engine::testing::Outcome&>(outcome) =
      engine::testing::train_layout(layout, {.steps = kSteps,
                                             .first_samples = 1,
                                             .lr = 1e-2,
                                             .check_traffic = true,
                                             .after_step = evaluate,
                                             .at_end = [](Executor& executor, int) { expect_zero_padding(executor.store()); }});
  return outcome;
}

void expect_same(const Outcome& actual, const Outcome& expected) {
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(actual.steps[i].tokens, expected.steps[i].tokens);
    EXPECT_NEAR(actual.steps[i].loss, expected.steps[i].loss, kBound * expected.steps[i].loss) << "step " << i;
    EXPECT_NEAR(actual.steps[i].grad_norm, expected.steps[i].grad_norm, kBound * expected.steps[i].grad_norm) << "step " << i;
  }
  EXPECT_NEAR(actual.evaluation, expected.evaluation, kBound * expected.evaluation);
  testing::expect_same_gradients(actual.gradients, expected.gradients, kBound);
  for (const auto& [name, value] : expected.values)
    EXPECT_TRUE(testing::is_rounding(name) || testing::error_of(actual.values.at(name), value) <= kBound) << "value of " << name;
}

// Twins by what they depend on.
class ShardingEdge : public ::testing::Test {
 protected:
  void compare(const Case& c, int64_t global_batch = 8, const Change& change = [](program::Layout&) {}) {
    SCOPED_TRACE(cat(c.preset, " zero ", c.zero, " dp ", c.dp, " replicate ", c.dp_replicate, " tp ", c.tp,
                     c.sequence_parallel ? " sequence parallel" : "", " S ", c.seq_len, " V ", c.vocab_size, " kv ",
                     c.kv_heads, c.overlap ? "" : " no overlap", c.offload.parameters ? " parameters away" : "",
                     c.offload.optimizer ? " optimizer away" : ""));
    Case one{.preset = c.preset, .dp = 1, .micro_batch = global_batch, .seq_len = c.seq_len, .dropout = c.dropout,
             .kv_heads = c.kv_heads, .vocab_size = c.vocab_size};
    const std::string key = cat(c.preset, "/", global_batch, "/", c.seq_len, "/", c.dropout, "/", c.kv_heads, "/", c.vocab_size);
    if (!twins_.contains(key)) twins_[key] = train(one, global_batch, [](program::Layout&) {});
    expect_same(train(c, global_batch, change), twins_.at(key));
  }

 private:
  std::map<std::string, Outcome> twins_;
};

TEST_F(ShardingEdge, SeveralStepsOfEveryStage) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const int zero : {1, 2, 3})
      for (const auto& [dp, replicate] : {std::pair{2, 1}, {4, 2}})
        compare({.preset = preset, .dp = dp, .micro_batch = 1, .dropout = 0.1, .zero = zero, .dp_replicate = replicate});
}

TEST_F(ShardingEdge, AxesOfOneRank) {
  for (const int zero : {1, 2, 3})
    for (const bool overlap : {true, false}) {
      compare({.dp = 1, .overlap = overlap, .zero = zero});
      compare({.dp = 2, .overlap = overlap, .zero = zero, .dp_replicate = 2});
      compare({.dp = 1, .overlap = overlap, .tp = 2, .zero = zero});
    }
}

// 511 tokens and rows of 15 over tp; key/value heads that ranks share; norms whose gradients are parts of a sum.
TEST_F(ShardingEdge, UnevenPiecesOfTensorParallelism) {
  for (const int zero : {1, 2, 3})
    for (const bool sequence_parallel : {true, false}) {
      compare({.preset = "gpt2-test", .dp = 2, .micro_batch = 1, .seq_len = 15, .dropout = 0.1, .tp = 2,
               .sequence_parallel = sequence_parallel, .vocab_size = 511, .zero = zero}, 4);
      compare({.preset = "llama-test", .dp = 2, .micro_batch = 1, .seq_len = 15, .tp = 2,
               .sequence_parallel = sequence_parallel, .kv_heads = 1, .vocab_size = 511, .zero = zero}, 4);
    }
  compare({.preset = "llama-test", .dp = 2, .micro_batch = 1, .tp = 4, .kv_heads = 2, .zero = 3}, 4);
  compare({.preset = "llama-test", .dp = 4, .micro_batch = 1, .tp = 2, .kv_heads = 1, .zero = 2, .dp_replicate = 2}, 4);
}

// The head of a tied model is one norm: most of eight parts are padding alone, also of what REDUCE_PARTIAL sums.
TEST_F(ShardingEdge, PartsOfPaddingAlone) {
  for (const int zero : {1, 2, 3}) compare({.dp = 8, .micro_batch = 1, .seq_len = 8, .vocab_size = 67, .zero = zero});
  compare({.dp = 5, .micro_batch = 1, .seq_len = 8, .tp = 2, .vocab_size = 67, .zero = 3}, 10);
}

TEST_F(ShardingEdge, EveryPlanOfGathering) {
  for (const int prefetch : {0, 1, 2, 5})
    for (const bool after_forward : {true, false})
      for (const bool after_microbatch : {true, false})
        compare({.dp = 2, .zero = 3}, 8, [&](program::Layout& layout) {
          layout.prefetch = prefetch;
          layout.reshard_after_forward = after_forward;
          layout.reshard_after_microbatch = after_microbatch;
        });
}

TEST_F(ShardingEdge, OffloadedStates) {
  for (const int zero : {0, 1, 2, 3})
    for (const auto& [dp, replicate] : {std::pair{1, 1}, {2, 1}, {2, 2}, {4, 2}}) {
      compare({.dp = dp, .micro_batch = 1, .zero = zero, .dp_replicate = replicate, .offload = {.optimizer = true}});
      if (zero == 0 || zero == 3)
        compare({.dp = dp, .micro_batch = 1, .zero = zero, .dp_replicate = replicate,
                 .offload = {.optimizer = true, .parameters = true}});
    }
  compare({.preset = "llama-test", .dp = 2, .micro_batch = 1, .tp = 2, .kv_heads = 1, .zero = 3,
           .offload = {.optimizer = true, .parameters = true}}, 4);
}

// One microbatch on two ranks, no clipping: a sum of two terms has one order, so every way of keeping states gives the
// same bits, the rounding of the compute copy included.
TEST_F(ShardingEdge, TheSameBitsHoweverStatesAreKept) {
  const auto values = [](Case c) {
    c.dp = 2, c.micro_batch = 1;
    const program::Layout layout = layout_for(c, 2);
    std::vector<at::Tensor> all;
    lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout, .max_grad_norm = 0}, groups);
      for (int64_t step = 1; step <= kSteps; ++step) executor.step(microbatches(layout, world.rank(), step), step, 1e-2);
      for (int param = 0; param < static_cast<int>(executor.store().table().size()); ++param) {
        const at::Tensor value = executor.whole_value(param);
        if (world.rank() == 0) all.push_back(value.clone());
      }
    });
    return all;
  };
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
    const std::vector<at::Tensor> expected = values({.precision = precision});
    for (const int zero : {0, 1, 2, 3})
      for (const program::Offload& offload : {program::Offload{}, program::Offload{.optimizer = true},
                                              program::Offload{.optimizer = true, .parameters = true}}) {
        if (offload.parameters && (zero == 1 || zero == 2)) continue;  // refused
        const std::vector<at::Tensor> actual = values({.precision = precision, .zero = zero, .offload = offload});
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(at::equal(actual[i], expected[i])) << "zero " << zero << " parameter " << i;
      }
  }
}

// Whatever is on its way when a step breaks off: nothing hangs, and nothing is written into memory that is gone.
TEST_F(ShardingEdge, AStepThatBreaksOffAnywhere) {
  for (const Case& c : {Case{.dp = 2, .zero = 1}, Case{.dp = 2, .zero = 3},
                        Case{.dp = 2, .zero = 3, .recompute = {}, .offload = {.optimizer = true, .parameters = true}}}) {
    const program::Layout layout = layout_for(c, 8);
    const size_t length = program::build_program(layout).list(0).size();
    for (size_t at = 1; at < length; at += 5)
      lockstep::testing::run_ranks(c.dp, [&](comm::World& world) {
        Groups groups(world, layout);
        size_t seen = 0;
        Executor executor({.layout = layout,
                           .before_action =
                               [&](const program::Action&, ParameterStore&) {
                                 if (seen++ == at) throw std::runtime_error("broken off");
                               }},
                          groups);
        EXPECT_THROW(executor.step(microbatches(layout, world.rank(), 0), 1, 1e-3), std::runtime_error);
      });
  }
}

}  // namespace
}  // namespace lockstep::engine
