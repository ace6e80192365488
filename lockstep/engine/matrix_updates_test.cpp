// Muon in every kind of layout against one rank; calls and memory as predicted.
#include <ATen/ops/abs.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;
using engine::testing::optimizer_of;
using engine::testing::Outcome;

constexpr int64_t kBatch = 12;

Case muon(Case c) {
  c.optimizer = config::OptimizerKind::kMuon;
  return c;
}

Outcome train(const Case& c) {
  return engine::testing::train_layout(layout_for(c, kBatch), {.steps = 3, .max_grad_norm = 0.05});
}

double furthest(const at::Tensor& a, const at::Tensor& b) { return at::sub(a, b).abs().max().item<double>(); }

// By name, for traces.
std::vector<Case> layouts(const std::string& preset) {
  std::vector<Case> all = {{.dp = 2}, {.dp = 1, .tp = 2}, {.dp = 1, .tp = 2, .kv_heads = 1}, {.dp = 2, .tp = 2}};
  for (const int zero : {1, 2, 3}) {
    all.push_back({.dp = 2, .zero = zero});
    all.push_back({.dp = 3, .zero = zero});
    all.push_back({.dp = 4, .zero = zero, .dp_replicate = 2});
    all.push_back({.dp = 2, .tp = 2, .zero = zero});
    all.push_back({.dp = 2, .zero = zero, .offload = {.optimizer = true, .parameters = zero == 3}});
  }
  all.push_back({.dp = 1, .tp = 2, .offload = {.optimizer = true, .parameters = true}});
  all.push_back({.dp = 2, .zero = 1, .pp = 2});
  all.push_back({.dp = 2, .kind = config::DataParallel::kParameterServer, .tp = 2});
  for (Case& c : all) {
    c.preset = preset;
    c.micro_batch = 1;
    if (preset != "llama-test") c.kv_heads = 0;
  }
  return all;
}

// Of updates of about lr 0.2 sqrt(largest side) / sqrt(largest side) = 2e-4 an element. In fp32 gradients that differ by rounding
// give directions that do so. In bf16 the iteration, 3.44^5 steep at zero, lifts the rounding of directions that a gradient hardly
// has to the size of an update: no layout is further from one rank than one rank is from itself when it cuts its batch otherwise.
double spread(const Case& alone) {
  Case cut = alone;
  cut.micro_batch = 2;
  const Outcome a = train(alone), b = train(cut);
  double most = 0;
  for (const auto& [name, value] : a.values)
    if (name.starts_with("blocks.") && value.dim() == 2) most = std::max(most, furthest(b.values.at(name), value));
  return most;
}

void expect_one_ranks_updates(const char* preset, config::Precision ns) {
  for (Case c : layouts(preset)) {
    c = muon(c);
    c.ns_precision = ns;
    Case alone = muon({.preset = preset, .dp = 1, .micro_batch = 1, .kv_heads = c.kv_heads});
    alone.ns_precision = ns;
    const double bound = ns == config::Precision::kFp32 ? 2e-5 : 2 * spread(alone);
    SCOPED_TRACE(cat(preset, " ", program::describe(layout_for(c, kBatch)), " ", config::Precision::kFp32 == ns ? "fp32" : "bf16"));
    const Outcome actual = train(c), expected = train(alone);
    EXPECT_TRUE(actual.copies_agree);
    for (size_t step = 0; step < expected.steps.size(); ++step)
      EXPECT_NEAR(actual.steps[step].loss, expected.steps[step].loss, 1e-4 * expected.steps[step].loss) << step;
    for (const auto& [name, value] : expected.values) {
      const bool matrix = name.starts_with("blocks.") && value.dim() == 2;
      if (matrix) {
        EXPECT_LE(furthest(actual.values.at(name), value), bound) << name;
      }
    }
  }
}

TEST(MatrixUpdates, EveryLayoutComputesWhatOneRankComputes) {
  expect_one_ranks_updates("llama-test", config::Precision::kFp32);
}

TEST(LongMatrixUpdates, EveryLayoutComputesWhatOneRankComputes) {
  expect_one_ranks_updates("gpt2-test", config::Precision::kFp32);
  for (const char* preset : {"gpt2-test", "llama-test"}) expect_one_ranks_updates(preset, config::Precision::kBf16);
}

// Over two ranks a sum of one microbatch has one order: shards change no bit of a gradient, and the owner has the matrix of plain data parallelism.
TEST(MatrixUpdates, StagesOfZeroComputeWhatPlainDataParallelismComputes) {
  const auto run = [](int zero) {
    const Case c = muon({.preset = "llama-test", .dp = 2, .micro_batch = 1, .zero = zero});
    return engine::testing::train_layout(layout_for(c, 2), {.steps = 3, .max_grad_norm = 0});
  };
  const Outcome plain = run(0);
  for (const int zero : {1, 2, 3}) {
    const Outcome sharded = run(zero);
    for (const auto& [name, value] : plain.values) EXPECT_LE(furthest(sharded.values.at(name), value), 1e-6) << name << " zero " << zero;
  }
}

TEST(MatrixUpdates, RecordedLedgerIsThePredictedOne) {
  for (const config::Precision ns : {config::Precision::kFp32, config::Precision::kBf16})
    for (Case c : layouts("llama-test")) {
      c = muon(c);
      c.ns_precision = ns;
      const program::Layout layout = layout_for(c, kBatch);
      SCOPED_TRACE(program::describe(layout));
      lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
        Groups groups(world, layout);
        Executor executor({.layout = layout}, groups);
        groups.take_ledger();
        executor.step(microbatches(layout, world.rank(), 0), 1, 1e-3);
        const program::Ledger predicted = program::predict_ledger(layout, executor.program(), world.rank());
        EXPECT_THAT(program::Ledger::difference(predicted, groups.take_ledger()), ::testing::IsEmpty());
      });
    }
}

// Slots are predicted to the byte; buffers of matrices as the most that any rank holds.
TEST(MatrixUpdates, StatesAreAsPredicted) {
  install_memory_tracking();
  for (const Case& of_adamw : layouts("llama-test")) {
    const Case c = muon(of_adamw);
    if (c.kind == config::DataParallel::kParameterServer) continue;
    const program::Layout layout = layout_for(c, kBatch);
    SCOPED_TRACE(program::describe(layout));
    lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout}, groups);
      executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), 1, 1e-3);
      const program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), world.rank());
      EXPECT_EQ(executor.measured_memory()[program::MemoryCategory::kOptimizer], predicted[program::MemoryCategory::kOptimizer]);
    });
  }
}

// Two units in memory at a time: states come from disk before their momentum takes the gradient.
TEST(MatrixUpdates, StatesMayLieOnDisk) {
  const auto run = [](bool disk) {
    const Case c = muon({.preset = "llama-test", .dp = 2, .micro_batch = 1, .zero = 1, .offload = {.optimizer = true}});
    program::Layout layout = layout_for(c, 4);
    if (disk) engine::testing::put_on_disk(layout);
    std::map<std::string, at::Tensor> values;
    const auto folder = std::filesystem::path(::testing::TempDir()) / cat("muon_", getpid());
    lockstep::testing::run_ranks(2, [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout, .disk_path = folder}, groups);
      for (int64_t step = 0; step < 2; ++step) executor.step(microbatches(layout, world.rank(), step), step + 1, 1e-3);
      for (int param = 0; param < static_cast<int>(executor.store().table().size()); ++param) {
        const at::Tensor value = executor.whole_value(param);
        if (world.rank() == 0) values[executor.store().table()[static_cast<size_t>(param)].name] = value.clone();
      }
    });
    return values;
  };
  const auto expected = run(false);
  for (const auto& [name, value] : run(true)) EXPECT_TRUE(at::equal(value, expected.at(name))) << name;
}

// A rule of its own for some: their rate and decay, and AdamW where it says so.
TEST(MatrixUpdates, RulesChooseByName) {
  Case c = muon({.preset = "llama-test", .dp = 2, .micro_batch = 1, .zero = 1});
  c.ns_precision = config::Precision::kFp32;
  config::OptimizerSection section = optimizer_of(c);
  section.rules = {{{.match = "blocks.0.mlp.*", .optimizer = config::OptimizerKind::kAdamW},
                    {.match = "blocks.1.*", .of = config::ParameterClass::kMatrix, .lr = 0, .decay = 0}}};
  const auto run = [&](int dp, int zero) {
    c.dp = dp;
    c.zero = zero;
    program::Layout layout = layout_for(c, 4);
    layout.optimizer = section;
    return engine::testing::train_layout(layout, {.steps = 2, .max_grad_norm = 0});
  };
  const Outcome one = run(1, 0), two = run(2, 1);
  program::Layout untrained = layout_for(c, 4);
  const Outcome start = engine::testing::train_layout(untrained, {.steps = 0});
  for (const auto& [name, value] : one.values) {
    EXPECT_LE(furthest(two.values.at(name), value), 1e-4) << name;
    const bool still = name.starts_with("blocks.1.") && value.dim() == 2;
    EXPECT_EQ(at::equal(value, start.values.at(name)), still) << name;
  }
}

}  // namespace
}  // namespace lockstep::engine
