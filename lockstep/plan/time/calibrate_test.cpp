#include "lockstep/plan/time/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/plan/time/small_solve.h"

namespace lockstep::plan {
namespace {

// Work as the model of this test counts it.
struct Piece {
  double flops = 0, depth = 1;  // of products
  double attention = 0;         // FLOPs
  double bytes = 0;             // of memory
  double launches = 0;
  double calls = 0, sent = 0;
};

constexpr double kPeak = 1e11, kMemory = 1e10;

double seconds_of(const Piece& piece, const Machine& machine) {
  const Stack& stack = machine.stack;
  const DeviceKind& device = machine.cluster.device;
  return piece.flops * (piece.depth + stack.product_depth) / piece.depth / (kPeak * stack.product_cap) + piece.attention / (kPeak * stack.attention_forward) +
         piece.bytes / (kMemory * stack.memory_share) + piece.launches * stack.launch + piece.calls * device.link_latency +
         piece.sent / std::min(device.link, device.link_to_one);
}

MachineModel model_of(const std::vector<Piece>& pieces) {
  return [pieces](const Machine& machine) {
    std::vector<double> seconds;
    for (const Piece& piece : pieces) seconds.push_back(seconds_of(piece, machine));
    return seconds;
  };
}

// Layers of two widths, updates, and calls of two sizes.
std::vector<Piece> pieces() {
  std::vector<Piece> all;
  for (const double width : {128.0, 512.0, 1024.0})
    for (const double tokens : {256.0, 2048.0}) {
      all.push_back({.flops = 24 * tokens * width * width, .depth = width, .attention = 4 * tokens * tokens * width, .bytes = 200 * tokens * width,
                     .launches = 12});
      all.push_back({.flops = 48 * tokens * width * width, .depth = tokens, .bytes = 400 * tokens * width, .launches = 20});
      all.push_back({.bytes = 28 * 12 * width * width, .launches = 3});
      all.push_back({.calls = 1, .sent = 48 * width * width});
      all.push_back({.calls = 2, .sent = 100});
    }
  return all;
}

Machine start() {
  Machine machine;
  machine.cluster.device.link = machine.cluster.device.link_to_one = 5e9;
  machine.cluster.device.link_latency = 5e-6;
  return machine;
}

Machine truth() {
  Machine machine = start();
  machine.stack.product_cap = 0.52;
  machine.stack.product_depth = 61;
  machine.stack.attention_forward = 0.21;
  machine.stack.memory_share = 0.37;
  machine.stack.launch = 9e-6;
  machine.cluster.device.link = machine.cluster.device.link_to_one = 2.2e9;
  machine.cluster.device.link_latency = 31e-6;
  return machine;
}

std::vector<Observation> observed(const std::vector<Piece>& all, const std::vector<double>& seconds) {
  std::vector<Observation> result;
  for (size_t i = 0; i < all.size(); ++i) result.push_back({.what = all[i].calls > 0 ? "calls" : "work", .seconds = seconds[i],
                                                            .times = all[i].calls > 0 ? 20.0 : 1.0});
  return result;
}

void expect_truth(const Machine& found, double tolerance) {
  const Machine right = truth();
  for (const MachineConstant& constant : machine_constants()) {
    if (constant.name == "attention_backward" || constant.name.ends_with("_exposed")) continue;  // nothing here depends on them
    EXPECT_NEAR(constant.get(found) / constant.get(right), 1, tolerance) << constant.name;
  }
}

TEST(Calibrate, RecoversTheConstantsOfASyntheticTrace) {
  const std::vector<Piece> all = pieces();
  const Calibration found = calibrate(start(), observed(all, model_of(all)(truth())), model_of(all), {.origin = "a test", .noise = 1e-4});
  expect_truth(found.machine, 0.01);
  EXPECT_LT(found.median_error, 1e-4);
  EXPECT_NEAR(found.total_error, 0, 1e-4);
  EXPECT_EQ(found.observations, static_cast<int>(all.size()));
  EXPECT_EQ(found.machine.stack.origins.at("product_cap"), "a test");
  EXPECT_EQ(found.machine.cluster.device.origin, "a test");
  EXPECT_FALSE(found.machine.stack.origins.contains("expert_exposed")) << "unchanged";
  EXPECT_EQ(found.machine.stack.expert_exposed, start().stack.expert_exposed);
  // Nothing says anything of it: it goes with the products.
  EXPECT_NEAR(found.machine.stack.attention_backward / start().stack.attention_backward,
              found.machine.stack.product_cap / start().stack.product_cap, 1e-3);
}

// 2 % off this way and that, and a few observations of four times their time.
TEST(Calibrate, StandsNoiseAndOutliers) {
  const std::vector<Piece> all = pieces();
  std::vector<Observation> noisy;
  for (int round = 0; round < 5; ++round) {
    std::vector<double> seconds = model_of(all)(truth());
    for (size_t i = 0; i < seconds.size(); ++i) seconds[i] *= 1 + 0.02 * std::sin(static_cast<double>(7 * i + 13 * static_cast<size_t>(round)));
    if (round == 0) seconds[1] *= 4, seconds[8] *= 4;
    const auto more = observed(all, seconds);
    noisy.insert(noisy.end(), more.begin(), more.end());
  }
  std::vector<Piece> repeated;
  for (int round = 0; round < 5; ++round) repeated.insert(repeated.end(), all.begin(), all.end());
  const Calibration found = calibrate(start(), noisy, model_of(repeated));
  EXPECT_LT(found.median_error, 0.03);
  EXPECT_NEAR(found.machine.stack.product_cap / truth().stack.product_cap, 1, 0.06);
  EXPECT_NEAR(found.machine.stack.memory_share / truth().stack.memory_share, 1, 0.06);
  EXPECT_NEAR(found.machine.cluster.device.link / truth().cluster.device.link, 1, 0.06);
  ASSERT_EQ(found.constants[0].name, "product_cap");
  EXPECT_LT(found.constants[0].error, 0.1);
}

// One depth alone: cap and depth say the same, and what they say together is right.
TEST(Calibrate, TellsWhatItCannotTellApart) {
  const std::vector<Piece> all = {{.flops = 1e9, .depth = 256}, {.flops = 3e9, .depth = 256}};
  const Calibration found = calibrate(start(), observed(all, model_of(all)(truth())), model_of(all));
  EXPECT_LT(found.median_error, 1e-3);
  for (const FittedConstant& constant : found.constants) EXPECT_GT(constant.error, 0.1) << constant.name;
  EXPECT_NEAR(found.machine.stack.launch, start().stack.launch, 1e-12);
  EXPECT_THAT(calibration_text(found), testing::HasSubstr("not told apart"));
}

TEST(Calibrate, ChangesWhatItIsToldToAlone) {
  const std::vector<Piece> all = pieces();
  const Calibration found = calibrate(start(), observed(all, model_of(all)(truth())), model_of(all), {.constants = {"memory_share"}});
  ASSERT_EQ(found.constants.size(), 1u);
  EXPECT_NE(found.machine.stack.memory_share, start().stack.memory_share);
  EXPECT_EQ(found.machine.stack.product_cap, start().stack.product_cap);
  EXPECT_THROW(calibrate(start(), observed(all, model_of(all)(truth())), model_of(all), {.constants = {"colour"}}), InternalError);
}

TEST(Calibrate, LeavesOutWhatSaysNothing) {
  const std::vector<Piece> all = {{.flops = 1e9, .depth = 256}, {}, {.bytes = 1e6}};
  std::vector<Observation> some = observed(all, {0.1, 0.2, 0});
  EXPECT_EQ(calibrate(start(), some, model_of(all)).observations, 1);
  some[0].seconds = 0;
  EXPECT_THROW(calibrate(start(), some, model_of(all)), ConfigError);
}

TEST(SmallSolve, SolvesWithPivots) {
  const Matrix a = {{0, 2, 1}, {1, 0, 0}, {3, 0, 1}};
  EXPECT_THAT(solve(a, {7, 1, 6}), testing::ElementsAre(testing::DoubleEq(1), testing::DoubleEq(2), testing::DoubleEq(3)));
  const Matrix inverse = inverted(a);
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j) {
      double sum = 0;
      for (size_t k = 0; k < 3; ++k) sum += a[i][k] * inverse[k][j];
      EXPECT_NEAR(sum, i == j ? 1 : 0, 1e-12);
    }
  EXPECT_THROW(solve({{1, 1}, {1, 1}}, {1, 2}), InternalError);
}

}  // namespace
}  // namespace lockstep::plan
