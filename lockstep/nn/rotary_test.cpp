// Stretched frequencies against those of transformers 5.23 (ROPE_INIT_FUNCTIONS); positions of each token.
#include "lockstep/nn/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "lockstep/base/check.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

// Of pair j: (1, 0) turned by one position is (cos f, sin f).
double frequency(const Rotary& rotary, int64_t head_size, int64_t j) {
  const at::Tensor x = at::zeros({1, 1, 1, head_size});
  x.select(3, j).fill_(1);
  rotary.apply(x, /*start=*/1);
  return std::atan2(x.select(3, j + head_size / 2).item<double>(), x.select(3, j).item<double>());
}

TEST(RopeScaling, Llama3OfLlama31) {
  const arch::RopeScaling scaling{.kind = arch::RopeScaling::Kind::kLlama3,
                                  .factor = 8,
                                  .low_freq_factor = 1,
                                  .high_freq_factor = 4,
                                  .original_max_position_embeddings = 8192};
  const Rotary rotary(/*positions=*/2, /*head_size=*/128, /*theta=*/500000, at::TensorOptions(at::kFloat), scaling);
  const std::vector<std::pair<int64_t, double>> expected = {
      {0, 1.0},                    {1, 0.8146172165870667},     {20, 0.016560440883040428},
      {28, 0.0032114461064338684},  // kept
      {30, 0.0013718936825171113}, {32, 0.0005248460220173001}, {34, 0.0001785077911335975},  // between
      {35, 9.556212171446532e-05}, {40, 3.428102354519069e-05}, {63, 3.068925877869333e-07}};  // divided by 8
  for (const auto& [j, f] : expected) EXPECT_NEAR(frequency(rotary, 128, j), f, 1e-6 * f) << j;
}

TEST(RopeScaling, LinearDividesAll) {
  const arch::RopeScaling scaling{.kind = arch::RopeScaling::Kind::kLinear, .factor = 4};
  const Rotary rotary(2, 16, 10000, at::TensorOptions(at::kFloat), scaling);
  const std::vector<double> expected = {0.25, 0.07905694097280502, 0.02500000037252903, 0.007905694656074047};
  for (size_t j = 0; j < expected.size(); ++j)
    EXPECT_NEAR(frequency(rotary, 16, static_cast<int64_t>(j)), expected[j], 1e-6 * expected[j]) << j;
}

TEST(RopeScaling, Yarn) {
  const arch::RopeScaling deepseek{.kind = arch::RopeScaling::Kind::kYarn, .factor = 40, .original_max_position_embeddings = 4096,
                                   .mscale = 1, .mscale_all_dim = 1};
  const arch::RopeScaling scaled{.kind = arch::RopeScaling::Kind::kYarn, .factor = 4, .original_max_position_embeddings = 64,
                                 .beta_fast = 8, .mscale = 1, .mscale_all_dim = 0.5};
  const Rotary of_deepseek(2, 16, 10000, at::TensorOptions(at::kFloat), deepseek), other(2, 16, 500, at::TensorOptions(at::kFloat), scaled);
  const std::vector<double> expected = {1.0, 0.3162277638912201, 0.10000000149011612, 0.023914724588394165, 0.005124999675899744,
                                        0.0008498621755279601, 2.499999936844688e-05, 7.905694474175107e-06};
  const std::vector<double> expected_other = {1.0, 0.34489744901657104, 0.1057371199131012, 0.02431231178343296, 0.011180340312421322,
                                              0.005141428206115961, 0.0023643539752811193, 0.0010872796410694718};
  for (size_t j = 0; j < expected.size(); ++j) {
    EXPECT_NEAR(frequency(of_deepseek, 16, static_cast<int64_t>(j)), expected[j], 1e-6 * expected[j]) << j;
    EXPECT_NEAR(frequency(other, 16, static_cast<int64_t>(j)), expected_other[j], 1e-6 * expected_other[j]) << j;
  }
  const at::Tensor x = at::zeros({1, 1, 1, 16});
  x.select(3, 2).fill_(1);
  other.apply(x, 1);
  EXPECT_NEAR(x.norm().item<double>(), 1.0648216253695715, 1e-6);  // of cosines and sines
}

// Where the range between is not rounded to whole indices: the formula of the paper (Peng et al. 2023, section 3.2).
TEST(RopeScaling, YarnWithoutRounding) {
  const arch::RopeScaling scaling{.kind = arch::RopeScaling::Kind::kYarn, .factor = 32, .original_max_position_embeddings = 4096, .truncate = false};
  constexpr int64_t kSize = 64;
  constexpr double kTheta = 150000;
  const Rotary rotary(2, kSize, kTheta, at::TensorOptions(at::kFloat), scaling);
  const auto index = [](double turns) { return kSize * std::log(4096 / (turns * 2 * std::numbers::pi)) / (2 * std::log(kTheta)); };
  const double low = index(32), high = index(1);
  EXPECT_NE(low, std::floor(low));
  for (int64_t j = 0; j < kSize / 2; ++j) {
    const double f = std::pow(kTheta, -2.0 * static_cast<double>(j) / kSize), beyond = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    const double expected = f * (1 - beyond) + f / 32 * beyond;
    EXPECT_NEAR(frequency(rotary, kSize, j), expected, 2e-5 * expected) << j;
  }
}

TEST(Rotary, TurnsTheFirstElementsOfAHead) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Rotary rotary(/*positions=*/40, /*size=*/4, /*theta=*/100, at::TensorOptions(type));
    const at::Tensor x = testing::random("x", {2, 5, 3, 10}).to(type), before = x.clone(), expected = x.narrow(3, 0, 4).contiguous();
    rotary.apply(expected, 7);
    rotary.apply(x, 7);
    EXPECT_TRUE(x.narrow(3, 0, 4).equal(expected));
    EXPECT_TRUE(x.narrow(3, 4, 6).equal(before.narrow(3, 4, 6)));
    const at::Tensor positions = at::arange(7, 12, at::kLong).repeat({2, 1}), again = before.clone();
    rotary.apply(again, positions);
    EXPECT_TRUE(again.equal(x));
    EXPECT_THROW(rotary.apply(x.narrow(3, 0, 2)), InternalError);
  }
}

// The heads of packed projections, in the middle of a row, of one sequence or several that lie apart.
at::Tensor heads(int64_t batch, int64_t seq, at::ScalarType type) {
  return testing::random("x", {2 * batch, seq, 5, 12}).to(type).narrow(0, 0, batch).narrow(2, 1, 3);
}

// Token by token as a sequence of its own that begins there.
TEST(RotaryPositions, TurnEachTokenAsTodayItsPlaceDoes) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Rotary rotary(/*positions=*/40, /*head_size=*/12, /*theta=*/100, at::TensorOptions(type));
    const at::Tensor positions = at::tensor({0, 1, 2, 3, 0, 1, 39, 7, 7, 30}, at::kLong).view({2, 5});
    const at::Tensor x = heads(2, 5, type), expected = x.clone();
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t s = 0; s < 5; ++s) rotary.apply(expected.narrow(0, b, 1).narrow(1, s, 1), positions[b][s].item<int64_t>());
    const at::Tensor before = x.clone();
    rotary.apply(x, positions);
    EXPECT_TRUE(x.equal(expected));
    rotary.apply_inverse(x, positions);
    EXPECT_LE(testing::relative_error(x, before), type == at::kFloat ? 1e-6 : 2e-2);
    EXPECT_THROW(rotary.apply(x, positions + 1), InternalError) << "of the table";
    EXPECT_THROW(rotary.apply(x, positions.narrow(1, 0, 4)), InternalError) << "of other tokens";
  }
}

TEST(RotaryPositions, ThatCountFromZeroAreNone) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Rotary rotary(16, 12, 10000, at::TensorOptions(type));
    const at::Tensor positions = at::arange(16, at::kLong).repeat({3, 1});
    for (const bool inverse : {false, true}) {
      const at::Tensor x = heads(3, 16, type), expected = x.clone();
      if (inverse) {
        rotary.apply_inverse(expected);
        rotary.apply_inverse(x, positions);
      } else {
        rotary.apply(expected);
        rotary.apply(x, positions);
      }
      EXPECT_TRUE(x.equal(expected));
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
