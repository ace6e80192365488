// What `verify` finds: each fault is put into the layout's side alone, where the twin does not have it.
#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/train/test_verify.h"
#include "lockstep/train/verify_compare.h"
#include "lockstep/train/verify_update.h"

namespace lockstep::train {
namespace {

using engine::ExecutorOptions;
using engine::ParameterStore;
using engine::StateKind;
using program::Action;
using program::ActionKind;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using testing::expect_right;
using testing::failures;
using testing::verified;

// Loss, gradients and parameters are within the bounds that they are held to against the twin: nobody sees the fault there.
void expect_unseen_by_the_twin(const VerifyReport& report) {
  for (const VerifyStep& step : report.steps) {
    EXPECT_LE(step.max_gradient_error, report.tolerances.gradient);
    EXPECT_LE(step.max_parameter_error, report.tolerances.parameter);
    EXPECT_NEAR(step.loss, step.reference_loss, report.tolerances.loss * step.reference_loss);
  }
}

TEST(Verify, RightLayouts) {
  expect_right({.ranks = 2, .fields = {"model.dropout=0.1"}});
  expect_right({.ranks = 3, .fields = {"parallel.zero=3", "train.global_batch=9", "optimizer.max_grad_norm=0.05"}});
  expect_right({.ranks = 2, .fields = {"memory.offload=optimizer", "parallel.zero=1"}, .disk = true});
  expect_right({.ranks = 2, .fields = {"parallel.data_parallel=parameter_server", "train.precision=bf16"}});
}

// Momentum by element, matrices as a whole: where they lie scattered, and where they do not.
TEST(Verify, LayoutsWithMuon) {
  for (const char* precision : {"optimizer.ns_precision=bf16", "optimizer.ns_precision=fp32"}) {
    expect_right({.ranks = 2, .fields = {"optimizer.kind=muon", precision}});
    expect_right({.ranks = 2, .fields = {"optimizer.kind=muon", precision, "parallel.zero=3"}});
    expect_right({.ranks = 4, .fields = {"optimizer.kind=muon", precision, "parallel.zero=1", "parallel.tp=2"}});
    expect_right({.ranks = 2, .fields = {"optimizer.kind=muon", precision, "parallel.zero=1", "memory.offload=optimizer"}, .disk = true});
  }
}

TEST(Verify, MuonWithAnotherDecayOrRate) {
  const auto forget = [](ExecutorOptions& options) { options.layout.optimizer.muon_weight_decay = 50; };
  const auto wrong = [](ExecutorOptions& options) { options.layout.optimizer.momentum = 0.9; };
  for (const std::function<void(ExecutorOptions&)>& change : {std::function<void(ExecutorOptions&)>(forget), {wrong}}) {
    const VerifyReport report = verified({.fields = {"optimizer.kind=muon", "parallel.zero=1"}, .options = {.change_layout = change}});
    EXPECT_FALSE(report.ok);
    EXPECT_GT(report.steps.at(0).max_update_error, 1);
  }
}

// The update of the step before is taken back in some steps: what is judged is the one that is final.
TEST(Verify, AfterPostValidation) {
  for (const char* limit : {"0.5", "0.05", "0"})
    expect_right({.ranks = 2,
                  .fields = {"parallel.pp=2", "parallel.schedule=zb-h2", "parallel.post_validation=on",
                             cat("optimizer.max_grad_norm=", limit)},
                  .options = {.steps = 5}});
}

// Moments still change; parameters stay to the bit.
TEST(Verify, ALearningRateOfZero) {
  for (const char* layout : {"parallel.zero=0", "parallel.zero=2", "parallel.pp=2"}) {
    const VerifyReport report =
        verified({.fields = {layout, "train.steps=1", "optimizer.schedule=linear", "optimizer.min_lr=0"}});
    EXPECT_TRUE(report.ok) << verify_text(report);
    for (const VerifyStep& step : report.steps) EXPECT_EQ(step.max_parameter_error, 0);
  }
  // One that moves all the same.
  const auto moves = [](ExecutorOptions& options) {
    options.before_action = [](const Action& action, ParameterStore& store) {
      if (action.kind == ActionKind::kStep) store.value_part(0).add_(1e-4);
    };
  };
  const VerifyReport report = verified({.fields = {"train.steps=1", "optimizer.schedule=linear", "optimizer.min_lr=0"},
                                        .options = {.change_layout = moves}});
  EXPECT_FALSE(report.ok);
  EXPECT_NEAR(report.steps.at(0).max_parameter_error, 1e-4, 1e-6);
}

TEST(Verify, ForgottenWeightDecay) {
  const auto forget = [](ExecutorOptions& options) { options.layout.optimizer.weight_decay = 0; };
  const VerifyReport report = verified({.options = {.free = 0, .change_layout = forget}});
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(failures(report).size(), report.steps.size());
  EXPECT_THAT(failures(report), Each(StartsWith("update of ")));
  for (const VerifyStep& step : report.steps) EXPECT_THAT(step.worst_update, HasSubstr(", value, "));
  expect_unseen_by_the_twin(report);
}

// A second moment that is wrong by a factor; the correction of the first step takes it out of the update.
TEST(Verify, AWrongSecondMoment) {
  const auto wrong = [](ExecutorOptions& options) { options.layout.optimizer.beta2 = 0.9; };
  const VerifyReport report = verified({.options = {.steps = 1, .free = 0, .change_layout = wrong}});
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(failures(report).size(), 1U);
  EXPECT_THAT(report.steps.at(0).worst_update, HasSubstr(", second moment, "));
  expect_unseen_by_the_twin(report);
}

// The first moment of a unit goes back to the disk as it came.
TEST(Verify, ALostWriteBack) {
  const auto lose = [](ExecutorOptions& options) {
    const auto kept = std::make_shared<std::map<size_t, at::Tensor>>();
    options.before_action = [kept](const Action& action, ParameterStore& store) {
      const bool evict = action.kind == ActionKind::kEvict && action.moved == program::Moved::kOptimizer;
      if ((action.kind != ActionKind::kStep && !evict) || action.unit < 0) return;
      const size_t unit = store.unit_of(action.unit);
      if (!store.host()->on_disk(unit)) return;
      if (action.kind == ActionKind::kStep) store.host()->disk()->ready(unit);
      const at::Tensor moment = store.host()->slot(unit, 0);
      if (evict)
        moment.copy_(kept->at(unit));
      else
        (*kept)[unit] = moment.clone();
    };
  };
  const VerifyReport report = verified({.fields = {"memory.offload=optimizer", "parallel.zero=1"},
                                        .options = {.free = 0, .change_layout = lose},
                                        .disk = true});
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(failures(report).size(), report.steps.size());
  for (const VerifyStep& step : report.steps) EXPECT_THAT(step.worst_update, HasSubstr(", first moment, "));
  expect_unseen_by_the_twin(report);
}

// What the ranks gather after the update is the bf16 copy of before it: all replicas alike.
TEST(Verify, AStaleComputeCopy) {
  const auto stale = [](ExecutorOptions& options) {
    options.before_action = [kept = at::Tensor(), updated = false](const Action& action, ParameterStore& store) mutable {
      if (action.kind == ActionKind::kStep && !updated) kept = store.compute_part(0).clone();
      if (action.kind != ActionKind::kStep && updated) store.compute_part(0).copy_(kept);
      updated = action.kind == ActionKind::kStep;
    };
  };
  const VerifyReport report = verified({.fields = {"train.precision=bf16", "parallel.zero=1"},
                                        .options = {.steps = 1, .free = 0, .change_layout = stale}});
  EXPECT_FALSE(report.ok);
  EXPECT_THAT(failures(report), Each(StartsWith("update of ")));
  EXPECT_THAT(report.steps.at(0).worst_update, HasSubstr(", compute copy, "));
  expect_unseen_by_the_twin(report);
}

// The gradient of k is small beside that of v, with which it forms one matrix; it has a yardstick of its own.
TEST(Verify, AWrongGradientOfKeysBesideALargerOneOfValues) {
  constexpr double kWrong = 4e-5;
  std::atomic<double> of_the_matrix = 1;  // the error in largest values of q, k and v
  const auto wrong = [&](ExecutorOptions& options) {
    options.before_action = [&](const Action& action, ParameterStore& store) {
      if (action.kind != ActionKind::kNorm) return;
      std::map<std::string, double> largest;
      for (size_t row = 0; row < store.table().size(); ++row) {
        const at::Tensor gradient = store.grad(static_cast<int>(row));
        largest[store.table()[row].name] = gradient.abs().max().item<double>();
        if (store.table()[row].name == "blocks.0.attention.k.weight") gradient.mul_(1 + kWrong);
      }
      of_the_matrix = kWrong * largest.at("blocks.0.attention.k.weight") / largest.at("blocks.0.attention.v.weight");
    };
  };
  const VerifyReport report = verified({.options = {.steps = 1, .free = 0, .change_layout = wrong}});
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.steps.at(0).worst_gradient, "blocks.0.attention.k.weight");
  EXPECT_NEAR(report.steps.at(0).max_gradient_error, kWrong, 2e-6);
  EXPECT_LT(of_the_matrix, report.tolerances.gradient) << "it would have been seen by the yardstick of the matrix";
}

// Only where a key bias does nothing.
TEST(Verify, WhereTheGradientVanishes) {
  program::Layout layout;
  layout.seq_len = 16;
  const auto named = [](const char* name) {
    arch::ParamSpec spec;
    spec.name = cat("blocks.0.attention.", name);
    return spec;
  };
  const arch::ParamSpec k_bias = named("k.bias"), q_bias = named("q.bias"), k = named("k.weight"),
                        k_norm = named("k_norm.weight"), v = named("v.weight");
  EXPECT_TRUE(gradient_vanishes(k_bias, layout));
  for (const arch::ParamSpec& spec : {q_bias, k, k_norm, v}) EXPECT_FALSE(gradient_vanishes(spec, layout)) << spec.name;
  layout.model.family = arch::Family::kQwen2;  // rotation tells one key from another
  EXPECT_FALSE(gradient_vanishes(k_bias, layout));
  layout.seq_len = 1;
  for (const arch::ParamSpec& spec : {q_bias, k_bias, k, k_norm}) EXPECT_TRUE(gradient_vanishes(spec, layout)) << spec.name;
  EXPECT_FALSE(gradient_vanishes(v, layout));
}

// A gradient that is wrong only in the last step, where both are alone: the update follows from it by the formula, and only the
// distance from the twin tells.
TEST(Verify, AFaultWhileLeftAlone) {
  const auto late = [](ExecutorOptions& options) {
    options.before_action = [step = 0](const Action& action, ParameterStore& store) mutable {
      if (action.kind == ActionKind::kNorm && ++step == 3) store.grad_part(1).mul_(1.01);
    };
  };
  const VerifyReport report = verified({.options = {.change_layout = late}});
  EXPECT_FALSE(report.ok);
  ASSERT_EQ(report.steps.size(), 3U);
  for (const VerifyStep& step : report.steps) EXPECT_LE(step.max_update_error, 1);
  EXPECT_THAT(report.steps[0].failures, IsEmpty());
  EXPECT_THAT(report.steps[1].failures, IsEmpty());
  EXPECT_THAT(report.steps[2].failures, ::testing::Contains(HasSubstr("left alone for 2 steps: first moments are ")));
}

// Layout and a reordered sum are not far from each other where both are right: no wide bound hides anything.
TEST(Verify, DriftIsSmall) {
  const VerifyReport report = verified({.options = {.steps = 5, .free = 4}});
  EXPECT_TRUE(report.ok) << verify_text(report);
  ASSERT_EQ(report.steps.size(), 5U);
  EXPECT_FALSE(report.steps[0].drift);
  for (size_t i = 1; i < 5; ++i) {
    ASSERT_TRUE(report.steps[i].drift);
    EXPECT_EQ(report.steps[i].alone, i > 1);
    EXPECT_GT(report.steps[i].drift->reordered.slots.at(0), 0);
    EXPECT_LT(report.steps[i].drift->reordered.values, 1e-3);
    EXPECT_LT(report.steps[i].drift->reordered.slots.at(0), 1e-2);
  }
}

}  // namespace
}  // namespace lockstep::train
