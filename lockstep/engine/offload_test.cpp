// Training whose states live on the host and on disk, against the same training without.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/predict/moves.h"
#include "lockstep/program/verify/verify.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;
using ::testing::HasSubstr;

std::filesystem::path folder() { return std::filesystem::path(::testing::TempDir()) / cat("offload_", getpid()); }

struct Variant {
  Case c;
  program::Offload offload;
  bool disk = false;  // as much as can
};

program::Layout layout_of(const Variant& variant) {
  program::Layout layout = layout_for(variant.c);
  layout.offload = variant.offload;
  if (variant.offload.activations)
    layout.recompute.assign(static_cast<size_t>(layout.model.layers), arch::Recompute::kFull);
  if (variant.disk) testing::put_on_disk(layout);
  return layout;
}

struct Outcome : testing::Outcome {
  std::vector<double> evaluations;
  std::vector<at::Tensor> moments;
  int64_t from_disk = 0;  // bytes
};

// Three steps with an evaluation between them; what rank 0 sees.
Outcome train(const program::Layout& layout) {
  Outcome outcome;
  const auto evaluate = [&](Executor& executor, int rank, int64_t) {
    const double loss = executor.evaluate(microbatches(layout, rank, 9)[0]).first;
    if (rank == 0) outcome.evaluations.push_back(loss);
  };
  const auto read_moments = [&](Executor& executor, int rank) {
    for (const StateTensor& tensor : executor.store().state())
      if (rank == 0 && (tensor.kind == StateKind{"exp_avg"} || tensor.kind == StateKind{"exp_avg_sq"}))
        outcome.moments.push_back(tensor.local.clone());
  };
  static_cast<testing::Outcome&>(outcome) =
      testing::train_layout(layout, {.steps = 3, .lr = 1e-2, .disk_path = folder(), .after_step = evaluate, .at_end = read_moments});
  for (const StepResult& step : outcome.steps) outcome.from_disk += step.disk.bytes;
  return outcome;
}

void expect_same_bits(const Outcome& actual, const Outcome& expected, const std::string& where) {
  EXPECT_EQ(actual.evaluations, expected.evaluations) << where;
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(actual.steps[i].loss, expected.steps[i].loss) << where;
    EXPECT_EQ(actual.steps[i].grad_norm, expected.steps[i].grad_norm) << where;
  }
  for (const auto& [name, value] : expected.values) EXPECT_TRUE(at::equal(actual.values.at(name), value)) << where << name;
  ASSERT_EQ(actual.moments.size(), expected.moments.size()) << where;
  for (size_t i = 0; i < expected.moments.size(); ++i)
    EXPECT_TRUE(at::equal(actual.moments[i], expected.moments[i])) << where << i;
}

std::vector<Variant> variants(const Case& c) {
  const bool parameters = c.zero == 0 || c.zero == 3;
  std::vector<Variant> all = {{c, {.optimizer = true}, false}, {c, {.optimizer = true}, true}};
  if (c.zero != 1) all.push_back({c, {.activations = true}, false});
  if (parameters)
    for (const bool disk : {false, true}) {
      all.push_back({c, {.optimizer = true, .parameters = true}, disk});
      all.push_back({c, {.optimizer = true, .parameters = true, .activations = true}, disk});
    }
  return all;
}

std::string text(const Variant& v) {
  return cat("zero ", v.c.zero, " dp ", v.c.dp, " optimizer ", v.offload.optimizer, " parameters ", v.offload.parameters,
             " activations ", v.offload.activations, " disk ", v.disk, " ");
}

TEST(Offload, GivesTheSameBitsAsOneRankWithoutIt) {
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
    // One microbatch: gradients of several are added up on the host, and not inside the products.
    const Case c{.dp = 1, .precision = precision, .micro_batch = 24, .dropout = 0.1};
    const Outcome expected = train(layout_for(c));
    for (const Variant& variant : variants(c)) expect_same_bits(train(layout_of(variant)), expected, text(variant));
  }
}

TEST(Offload, GivesTheSameBitsAtEveryStageOfZero) {
  for (const int zero : {1, 2, 3})
    for (const int replicate : {1, 2}) {
      if (replicate == 2 && zero != 3) continue;
      Case c{.dp = 2 * replicate};
      c.zero = zero;
      c.dp_replicate = replicate;
      c.micro_batch = 24 / c.dp;
      const Outcome expected = train(layout_for(c));
      for (const Variant& variant : variants(c)) expect_same_bits(train(layout_of(variant)), expected, text(variant));
    }
}

// Everything there is goes to disk, and comes back.
TEST(Offload, StatesOnDiskMoveEveryStep) {
  const Variant variant{.c = {.dp = 1}, .offload = {.optimizer = true, .parameters = true}, .disk = true};
  const program::Layout layout = layout_of(variant);
  const program::HostPlan plan = program::host_plan(layout, 0);
  ASSERT_GT(plan.disk_units.size(), 1U);
  EXPECT_GE(train(layout).from_disk, 3 * 2 * plan.disk);  // read and written, and parameters read besides
}

// Gradients are added on the host as they come: no copy of the queue.
TEST(Offload, RecordedMovesAreThePredictedOnes) {
  for (const Case& c : {Case{.dp = 1}, Case{.dp = 1, .precision = config::Precision::kBf16}, Case{.dp = 2, .zero = 3}})
    for (const Variant& variant : variants(c)) {
      const program::Layout layout = layout_of(variant);
      int64_t predicted = 0;
      for (const auto& [key, totals] : program::predict_moves(layout, program::build_program(layout), 0))
        if (key.first != "gradients") predicted += totals.bytes;
      lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
        Groups groups(world, layout);
        Executor executor({.layout = layout, .disk_path = folder()}, groups);
        for (int64_t step = 0; step < 2; ++step) {
          const StepResult result = executor.step(microbatches(layout, world.rank(), step), step + 1, 1e-3);
          EXPECT_EQ(result.copies.bytes + result.disk.bytes, predicted) << text(variant);
        }
      });
    }
}

TEST(Offload, ADamagedFileEndsTheStepAndNamesTheUnit) {
  const program::Layout layout = layout_of({.c = {.dp = 1}, .offload = {.optimizer = true}, .disk = true});
  lockstep::testing::run_ranks(1, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .disk_path = folder()}, groups);
    executor.step(microbatches(layout, 0, 0), 1, 1e-3);
    const DiskTier& tier = executor.store().host()->disk()->tier();
    executor.store().state();  // what was in flight has ended
    for (int64_t page = 0; page < tier.bytes(); page += 4096) ASSERT_EQ(pwrite(tier.descriptor(), "torn", 4, page), 4);
    try {
      executor.step(microbatches(layout, 0, 1), 2, 1e-3);
      FAIL() << "it read what nobody wrote";
    } catch (const EnvironmentError& error) {
      EXPECT_EQ(error.message().code, "LS4013");
      EXPECT_THAT(error.message().what, HasSubstr("values of "));
    }
    EXPECT_THROW(executor.store().state(), EnvironmentError);  // and no checkpoint is made of it
  });
}

}  // namespace
}  // namespace lockstep::engine
