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
#include "lockstep/program/verify/build.h"
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

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> values, moments;
  int64_t device = 0, host = 0, fetched = 0, from_disk = 0;
};

// Three steps with an evaluation between them; what rank 0 sees.
Outcome train(const program::Layout& layout) {
  Outcome outcome;
  lockstep::testing::run_ranks(layout.mesh.world_size(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .max_grad_norm = 0.05, .disk_path = folder()}, groups);
    std::vector<double> losses, norms;
    for (int64_t step = 0; step < 3; ++step) {
      const StepResult result = executor.step(
          executor.load([&] { return microbatches(layout, world.rank(), step); }), step + 1, 1e-2);
      losses.push_back(result.loss);
      norms.push_back(result.grad_norm);
      losses.push_back(executor.evaluate(microbatches(layout, world.rank(), 9)[0]).first);
      if (world.rank() == 0) outcome.fetched += result.copies.bytes;
      if (world.rank() == 0) outcome.from_disk += result.disk.bytes;
    }
    std::vector<at::Tensor> values, moments;
    for (int param = 0; param < static_cast<int>(executor.store().table().size()); ++param)
      values.push_back(executor.whole_value(param).clone());
    for (const StateTensor& tensor : executor.store().state())
      if (tensor.kind == StateKind{"exp_avg"} || tensor.kind == StateKind{"exp_avg_sq"}) moments.push_back(tensor.local.clone());
    if (world.rank() != 0) return;
    outcome.losses = losses;
    outcome.norms = norms;
    outcome.values = values;
    outcome.moments = moments;
    outcome.host = executor.measured_memory()[MemoryCategory::kHost];
  });
  return outcome;
}

void expect_same_bits(const Outcome& actual, const Outcome& expected, const std::string& where) {
  EXPECT_EQ(actual.losses, expected.losses) << where;
  EXPECT_EQ(actual.norms, expected.norms) << where;
  for (size_t i = 0; i < expected.values.size(); ++i) EXPECT_TRUE(at::equal(actual.values[i], expected.values[i])) << where << i;
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
