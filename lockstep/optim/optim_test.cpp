#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/optim/functions.h"

namespace lockstep::optim {
namespace {

// The update of the AdamW paper (algorithm 2), one element, in double precision.
struct ReferenceAdamW {
  double value, exp_avg = 0, exp_avg_sq = 0;
  void step(double grad, const config::OptimizerSection& o, bool decay, double lr, int64_t t) {
    if (decay) value -= lr * o.weight_decay * value;
    exp_avg = o.beta1 * exp_avg + (1 - o.beta1) * grad;
    exp_avg_sq = o.beta2 * exp_avg_sq + (1 - o.beta2) * grad * grad;
    const double m = exp_avg / (1 - std::pow(o.beta1, static_cast<double>(t)));
    const double v = exp_avg_sq / (1 - std::pow(o.beta2, static_cast<double>(t)));
    value -= lr * m / (std::sqrt(v) + o.eps);
  }
};

// More elements than a vector holds, and a rest.
TEST(AdamW, FollowsTheFormulaForSeveralSteps) {
  const config::OptimizerSection options{.weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
  constexpr int64_t kSize = 37;
  for (const bool decay : {true, false}) {
    Parameter parameter{.value = at::zeros({kSize}),
                        .grad = at::zeros({kSize}),
                        .slots = {at::zeros({kSize}), at::zeros({kSize})},
                        .copy = at::zeros({kSize}, at::kBFloat16),
                        .decay = decay};
    std::vector<ReferenceAdamW> reference;
    for (int64_t i = 0; i < kSize; ++i) {
      reference.push_back({std::cos(static_cast<double>(i)) * 3});
      parameter.value[i].fill_(reference.back().value);
    }
    for (int64_t step = 1; step <= 4; ++step) {
      const double scale = 0.5, lr = 0.01 * static_cast<double>(step);
      // From gradients whose square is no normal number to large ones; zero among them.
      const auto gradient = [&](int64_t i) {
        const double size = i % 5 == 4 ? 0.0 : std::pow(10.0, static_cast<double>(i % 5 * 8 - 22));
        return std::sin(static_cast<double>(step * 7 + i)) * size;
      };
      for (int64_t i = 0; i < kSize; ++i) {
        parameter.grad[i].fill_(gradient(i));
        reference[static_cast<size_t>(i)].step(gradient(i) * scale, options, decay, lr, step);
      }
      kAdamW.step({parameter}, options, {.lr = lr, .number = step, .grad_scale = scale});
      for (int64_t i = 0; i < kSize; ++i) {
        EXPECT_NEAR(parameter.value[i].item<double>(), reference[static_cast<size_t>(i)].value, 2e-6) << i;
        EXPECT_EQ(parameter.grad[i].item<float>(), static_cast<float>(gradient(i))) << i;
      }
      EXPECT_TRUE(parameter.copy.equal(parameter.value.to(at::kBFloat16)));
    }
  }
}

// The bound is one of rounding: fp32 arithmetic keeps it, and it is no wider than a few bits.
TEST(AdamWFormula, BoundsTheRoundingOfFp32) {
  const config::OptimizerSection options{.weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
  const StepPoint point{.lr = 1e-3, .number = 3, .grad_scale = 0.25};
  const UpdateFormula formula = kAdamW.formula(options, point, /*decay=*/true);
  const auto rate = static_cast<float>(1e-3 / (1 - std::pow(0.9, 3))),
             root = static_cast<float>(1 / std::sqrt(1 - std::pow(0.95, 3)));
  for (int i = 0; i < 200; ++i) {
    const auto value = static_cast<float>(0.02 * std::sin(i)), old_m = static_cast<float>(1e-3 * std::cos(i)),
               old_v = static_cast<float>(1e-6 * (1.5 + std::sin(3.0 * i))),
               gradient = static_cast<float>(std::sin(7.0 * i) * std::pow(10.0, i % 9 - 6));
    const std::array<double, 3> before = {value, old_m, old_v};
    std::array<double, 3> after{}, rounding{};
    formula(before, gradient, after, rounding);
    const float g = gradient * 0.25F, m = old_m + (g - old_m) * 0.1F, v = old_v * 0.95F + g * g * 0.05F;
    const float next = value * static_cast<float>(1 - 1e-4) - rate * m / (std::sqrt(v) * root + 1e-8F);
    EXPECT_LE(std::abs(static_cast<double>(next) - after[0]), rounding[0]);
    EXPECT_LE(std::abs(static_cast<double>(m) - after[1]), rounding[1]);
    EXPECT_LE(std::abs(static_cast<double>(v) - after[2]), rounding[2]);
    EXPECT_LT(rounding[0], 0x1p-20 * (std::abs(value) + 10 * point.lr));
    EXPECT_LT(rounding[1], 0x1p-20 * (std::abs(gradient) + std::abs(old_m)));
    EXPECT_LT(rounding[2], 0x1p-20 * after[2] + 1e-37);
  }
}

TEST(AdamWFormula, IsThatOfThePaper) {
  const config::OptimizerSection options{.weight_decay = 0.3, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3};
  for (const bool decay : {true, false}) {
    ReferenceAdamW reference{.value = 1.5};
    for (int64_t step = 1; step <= 3; ++step) {
      const std::array<double, 3> before = {reference.value, reference.exp_avg, reference.exp_avg_sq};
      std::array<double, 3> after{}, rounding{};
      const StepPoint point{.lr = 0.02, .number = step, .grad_scale = 0.5};
      kAdamW.formula(options, point, decay)(before, 3, after, rounding);
      reference.step(1.5, options, decay, point.lr, step);
      EXPECT_NEAR(after[0], reference.value, 1e-14);
      EXPECT_NEAR(after[1], reference.exp_avg, 1e-14);
      EXPECT_NEAR(after[2], reference.exp_avg_sq, 1e-14);
    }
  }
}

// The options are those of the section, and the slots those of the spec.
TEST(Optimizer, IsChosenByItsSpec) {
  const config::OptimizerSection options{.weight_decay = 0.3, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3};
  const StepPoint point{.lr = 0.02, .number = 2, .grad_scale = 0.5};
  const auto parameter = [] {
    return Parameter{.value = at::full({3}, 2.0), .grad = at::full({3}, 0.5), .slots = {at::zeros({3}), at::zeros({3})}, .decay = true};
  };
  const Parameter chosen = parameter(), direct = parameter();
  step({chosen}, options, point);
  kAdamW.step({direct}, options, point);
  EXPECT_TRUE(chosen.value.equal(direct.value));
  EXPECT_TRUE(chosen.slots[1].equal(direct.slots[1]));
  const std::array<double, 3> before = {2, 0, 0};
  std::array<double, 3> after{}, rounding{}, expected{};
  update_formula({}, options, point, true)(before, 0.5, after, rounding);
  kAdamW.formula(options, point, true)(before, 0.5, expected, rounding);
  EXPECT_EQ(after, expected);
  Parameter other = parameter();
  other.rule.optimizer = &arch::optimizer_spec("muon");
  EXPECT_THROW(step({other}, options, point), InternalError);
}

// By the sign alone: neither the scale of the gradient nor the rate of the schedule counts, nor decay.
TEST(Balance, MovesABiasAgainstTheSign) {
  const config::OptimizerSection options{.weight_decay = 0.3, .bias_rate = 0.25};
  const StepPoint point{.lr = 0.02, .number = 2, .grad_scale = 0.5};
  const arch::UpdateRule rule{.optimizer = &arch::optimizer_spec("balance"), .lr_factor = 7};
  const at::Tensor grad = at::arange(5, at::kFloat).sub(2).mul(1000);
  const Parameter bias{.value = at::full({5}, 1.0, at::kFloat), .grad = grad, .copy = at::zeros({5}, at::kBFloat16), .decay = true, .rule = rule};
  step({bias}, options, point);
  const std::array<double, 5> expected = {1.25, 1.25, 1, 0.75, 0.75};
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(bias.value[i].item<double>(), expected[static_cast<size_t>(i)]);
    EXPECT_EQ(bias.copy[i].item<double>(), expected[static_cast<size_t>(i)]);
    const std::array<double, 1> before = {1};
    std::array<double, 1> after{}, rounding{};
    update_formula(rule, options, point, true)(before, grad[i].item<double>(), after, rounding);
    EXPECT_EQ(after[0], expected[static_cast<size_t>(i)]);
    EXPECT_LT(rounding[0], 1e-6);
  }
}

TEST(GradientNorm, CountsEveryElementOnce) {
  const std::vector<at::Tensor> gradients = {at::full({3, 4}, 2.0), at::full({5}, -1.0), at::full({70001}, 3.0)};
  EXPECT_NEAR(gradient_norm(gradients), std::sqrt(12 * 4.0 + 5.0 + 70001 * 9.0), 1e-6);
  EXPECT_EQ(clip_factor(2.0, 1.0), 0.5);
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(100.0, 0.0), 1.0);
}

TEST(LearningRate, WarmsUpAndDecays) {
  config::OptimizerSection o;
  o.lr = 1.0;
  o.min_lr = 0.1;
  o.warmup_steps = 10;
  for (const auto schedule : {config::LrSchedule::kCosine, config::LrSchedule::kLinear, config::LrSchedule::kWsd,
                              config::LrSchedule::kConstant}) {
    o.schedule = schedule;
    EXPECT_DOUBLE_EQ(learning_rate(o, 0, 110), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(o, 9, 110), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate(o, 10, 110), 1.0);
    EXPECT_NEAR(learning_rate(o, 109, 110), schedule == config::LrSchedule::kConstant ? 1.0 : 0.1, 1e-12);
  }
  o.schedule = config::LrSchedule::kCosine;
  EXPECT_NEAR(learning_rate(o, 10 + 33, 110), 0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI / 3)), 1e-12);
  o.schedule = config::LrSchedule::kLinear;
  EXPECT_NEAR(learning_rate(o, 10 + 33, 110), 0.7, 1e-12);
  o.schedule = config::LrSchedule::kWsd;  // the last fifth: steps 88..109
  EXPECT_DOUBLE_EQ(learning_rate(o, 87, 110), 1.0);
  EXPECT_NEAR(learning_rate(o, 88 + 7, 110), 0.1 + 0.9 * (1 - std::sqrt(7.0 / 21.0)), 1e-12);
}

}  // namespace
}  // namespace lockstep::optim
