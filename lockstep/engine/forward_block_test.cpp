// A branch of which there is a forward function alone (model/forward_block.h), under layouts, against the same branch with derivatives of
// its own on one rank: "square" of support/blocks.h.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_steps.h"
#include "lockstep/model/forward_block.h"
#include "lockstep/program/predict/traffic.h"
#include "support/blocks.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;
using Blocks = std::vector<arch::BlockSpec>;

// With the names and initial values of "square".
bool add_square_function() {
  arch::ForwardKind kind{.id = "square_function", .by_token = true};
  kind.parameters = [](const arch::ModelConfig& m) -> std::vector<arch::ForwardParameter> {
    const double output_std = 0.02 / std::sqrt(2.0 * static_cast<double>(m.layers));
    return {{.name = "in", .shape = {m.ffn, m.hidden}}, {.name = "out", .shape = {m.hidden, m.ffn}, .init_std = output_std}};
  };
  model::add_forward_block(kind, [](const std::vector<at::Tensor>& p, const at::Tensor& x) {
    const at::Tensor h = at::linear(x, p[0]);
    return at::linear(h * h, p[1]);
  });
  return true;
}
const bool kAdded = add_square_function();

Blocks blocks_of(const std::string& kind) {
  const arch::Branch attention{.kind = "attention", .name = "attention"}, square{.kind = kind, .name = "square"};
  return {{attention, square},
          {square},
          {attention, lockstep::testing::beside(lockstep::testing::normed(square, false, true))},
          {lockstep::testing::normed(square, false, false), attention}};
}

struct Outcome {
  StepResult step;
  std::map<std::string, at::Tensor> gradients;  // whole ones
};

Outcome train(const Case& c, const std::string& kind) {
  program::Layout layout = layout_for(c, /*global_batch=*/4);
  layout.model.blocks = blocks_of(kind);
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

TEST(ForwardBlock, EveryLayoutComputesWhatItsDerivativesSay) {
  ASSERT_TRUE(kAdded);
  const std::vector<arch::Recompute> full(4, arch::Recompute::kFull), selective(4, arch::Recompute::kSelective);
  const Case plain{.preset = "llama-test", .dp = 1, .micro_batch = 2, .dropout = 0.1, .blocks = 4};
  const Outcome expected = train(plain, "square");
  const auto with = [&plain](auto change) {
    Case c = plain;
    change(c);
    return c;
  };
  const std::vector<Case> cases = {
      plain,
      with([](Case& c) { c.dp = 2; }),
      with([&](Case& c) { c.dp = 2, c.zero = 3; }),
      with([&](Case& c) { c.dp = 2, c.zero = 3, c.micro_batch = 1, c.recompute = full; }),
      with([&](Case& c) { c.recompute = selective; }),
      with([&](Case& c) { c.pp = 2, c.recompute = full; }),
      with([](Case& c) { c.pp = 2, c.micro_batch = 1, c.schedule = program::ScheduleKind::kZbH1; }),
      with([](Case& c) { c.dp = 2, c.zero = 2, c.pp = 2, c.micro_batch = 1, c.schedule = program::ScheduleKind::kZbH1; }),
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(cat("dp ", c.dp, " zero ", c.zero, " pp ", c.pp, " recompute ", c.recompute.empty() ? 0 : static_cast<int>(c.recompute[0])));
    const Outcome actual = train(c, "square_function");
    EXPECT_NEAR(actual.step.loss, expected.step.loss, 1e-5 * expected.step.loss);
    EXPECT_NEAR(actual.step.grad_norm, expected.step.grad_norm, 1e-5 * expected.step.grad_norm);
    ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
    for (const auto& [name, gradient] : expected.gradients)
      EXPECT_LE((actual.gradients.at(name) - gradient).abs().max().item<double>(), 1e-5 * gradient.abs().max().item<double>()) << name;
  }
}

TEST(ForwardBlock, IsNotCutOverTp) {
  EXPECT_THAT([] { train({.preset = "llama-test", .dp = 1, .tp = 2}, "square_function"); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("which tp(2) cannot cut")));
}

}  // namespace
}  // namespace lockstep::engine
