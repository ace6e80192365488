// Models whose blocks are other lists of branches, and differ by layer: every layout computes what one rank computes, and sends
// what was predicted.
#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_steps.h"
#include "lockstep/program/predict/traffic.h"
#include "support/blocks.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;
using Blocks = std::vector<arch::BlockSpec>;

struct Outcome {
  StepResult step;
  std::map<std::string, at::Tensor> gradients;  // whole ones
};

Outcome train(const Case& c, const Blocks& blocks) {
  program::Layout layout = layout_for(c, /*global_batch=*/4);
  layout.model.blocks = blocks;
  Outcome outcome;
  std::mutex mutex;
  lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .max_grad_norm = 0.05}, groups);
    groups.take_ledger();
    const StepResult step = executor.step(microbatches(layout, world.rank(), 0), 1, 1e-3);
    const program::Ledger predicted = program::predict_ledger(layout, executor.program(), world.rank());
    EXPECT_THAT(program::Ledger::difference(predicted, groups.take_ledger()), ::testing::IsEmpty());
    for (int param = 0; param < static_cast<int>(executor.store().table().size()); ++param) {
      const at::Tensor gradient = executor.whole_gradient(param).clone();
      const std::lock_guard lock(mutex);
      outcome.gradients.insert_or_assign(executor.store().table()[static_cast<size_t>(param)].name, gradient);
    }
    if (world.rank() == 0) outcome.step = step;
  });
  return outcome;
}

void compare(Case c, const Blocks& blocks) {
  SCOPED_TRACE(cat("tp ", c.tp, c.sequence_parallel ? " sequence parallel" : "", " zero ", c.zero, " pp ", c.pp, " recompute ",
                   c.recompute.size(), ", blocks from ", blocks[0][0].name, ", ", blocks[0].size()));
  c.preset = "llama-test";
  c.dropout = 0.1;
  const Case one{.preset = c.preset, .dp = 1, .micro_batch = 4, .seq_len = c.seq_len, .dropout = c.dropout};
  const Outcome actual = train(c, blocks), expected = train(one, blocks);
  EXPECT_NEAR(actual.step.loss, expected.step.loss, 1e-5 * expected.step.loss);
  EXPECT_NEAR(actual.step.grad_norm, expected.step.grad_norm, 1e-5 * expected.step.grad_norm);
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    const double error = at::sub(actual.gradients.at(name), gradient).abs().max().item<double>();
    EXPECT_LE(error, 1e-5 * gradient.abs().max().item<double>()) << name;
  }
}

TEST(Blocks, EveryLayoutComputesWhatOneRankComputes) {
  const std::vector<arch::Recompute> again(3, arch::Recompute::kFull), selective(3, arch::Recompute::kSelective);
  for (const Blocks& blocks : lockstep::testing::other_blocks()) {
    for (const bool sequence_parallel : {true, false})
      for (const bool overlap : {true, false})
        compare({.dp = 1, .overlap = overlap, .tp = 2, .sequence_parallel = sequence_parallel}, blocks);
    compare({.dp = 1, .seq_len = 15, .tp = 4, .recompute = again}, blocks);
    compare({.dp = 1, .tp = 2, .recompute = selective}, blocks);
    compare({.dp = 2, .zero = 3}, blocks);
    compare({.dp = 1, .pp = 2}, blocks);
    compare({.dp = 1, .micro_batch = 1, .tp = 2, .pp = 2, .schedule = program::ScheduleKind::kZbH1}, blocks);
  }
}

}  // namespace
}  // namespace lockstep::engine
