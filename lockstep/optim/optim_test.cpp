#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/lr_schedule.h"

namespace lockstep::optim {
namespace {

// The update of the AdamW paper (algorithm 2), one element, in double precision.
struct ReferenceAdamW {
  double value, exp_avg = 0, exp_avg_sq = 0;
  void step(double grad, const AdamWOptions& o, bool decay, double lr, int64_t t) {
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
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  constexpr int64_t kSize = 37;
  for (const bool decay : {true, false}) {
    AdamWParameter parameter{.value = at::zeros({kSize}),
                             .grad = at::zeros({kSize}),
                             .exp_avg = at::zeros({kSize}),
                             .exp_avg_sq = at::zeros({kSize}),
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
      adamw_step({parameter}, options, lr, step, scale);
      for (int64_t i = 0; i < kSize; ++i) {
        EXPECT_NEAR(parameter.value[i].item<double>(), reference[static_cast<size_t>(i)].value, 2e-6) << i;
        EXPECT_EQ(parameter.grad[i].item<float>(), static_cast<float>(gradient(i))) << i;
      }
      EXPECT_TRUE(parameter.copy.equal(parameter.value.to(at::kBFloat16)));
    }
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
