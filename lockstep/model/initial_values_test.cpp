// Initial values of the kinds that state spaces have, against their distributions.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "lockstep/model/model.h"

namespace lockstep::model {
namespace {

constexpr int64_t kNumbers = 20000;

std::vector<float> values_of(arch::Init init, double init_std = 0, const char* name = "blocks.0.ssm.a_log.weight", uint64_t seed = 5) {
  arch::ParamSpec spec;
  spec.name = name;
  spec.shape = {kNumbers};
  spec.init = init;
  spec.init_std = init_std;
  std::vector<float> values(static_cast<size_t>(kNumbers));
  initial_values(spec, seed, 0, values);
  return values;
}

// Even within [least, most] behind `back`: nothing beyond, and the mean and the variance of that, to five standard deviations.
void expect_even(const std::vector<float>& values, double least, double most, const std::function<double(double)>& back) {
  double sum = 0, squares = 0;
  for (const float value : values) {
    const double number = back(value), rounding = 1e-6 * (std::abs(least) + std::abs(most));
    ASSERT_GE(number, least - rounding);
    ASSERT_LE(number, most + rounding);
    sum += number;
    squares += number * number;
  }
  const auto count = static_cast<double>(values.size());
  const double mean = sum / count, width = most - least, variance = width * width / 12;
  EXPECT_NEAR(mean, (least + most) / 2, 5 * std::sqrt(variance / count));
  EXPECT_NEAR(squares / count - mean * mean, variance, 5 * width * width / std::sqrt(180 * count));
}

TEST(InitialValuesOfStateSpaces, AreEvenWhereTheyShouldBe) {
  expect_even(values_of(arch::Init::kUniform, 0.5), -0.5, 0.5, [](double value) { return value; });
  expect_even(values_of(arch::Init::kLogDecay), 1, 16, [](double value) { return std::exp(value); });
  // softplus undone: log(1 + e^x) is the step.
  expect_even(values_of(arch::Init::kTimeStep), std::log(0.001), std::log(0.1), [](double value) { return std::log(std::log1p(std::exp(value))); });
}

TEST(InitialValuesOfStateSpaces, AreAFunctionOfSeedNameAndIndex) {
  for (const arch::Init init : {arch::Init::kUniform, arch::Init::kLogDecay, arch::Init::kTimeStep}) {
    const std::vector<float> whole = values_of(init, 0.5);
    arch::ParamSpec spec;
    spec.name = "blocks.0.ssm.a_log.weight";
    spec.init = init;
    spec.init_std = 0.5;
    for (const int64_t first : {1, 7, 4096, 19999}) {
      std::vector<float> part(static_cast<size_t>(kNumbers - first));
      initial_values(spec, 5, first, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first;
    }
    EXPECT_NE(whole, values_of(init, 0.5, "blocks.1.ssm.a_log.weight"));
    EXPECT_NE(whole, values_of(init, 0.5, "blocks.0.ssm.a_log.weight", 6));
  }
}

}  // namespace
}  // namespace lockstep::model
