// Of a matrix with entries on its diagonal alone every product of the iteration is one too: each entry by itself follows from
// numbers in fp64. tests/muon_reference_test.py compares full matrices with torch.optim.Muon.
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/optim/functions.h"

namespace lockstep::optim {
namespace {

using Shapes = std::vector<std::pair<int64_t, int64_t>>;

constexpr int64_t kShort = 5;

at::Tensor diagonal(int64_t rows, int64_t columns, const std::vector<double>& entries) {
  const at::Tensor matrix = at::zeros({rows, columns});
  for (size_t i = 0; i < entries.size(); ++i) matrix[static_cast<int64_t>(i)][static_cast<int64_t>(i)].fill_(entries[i]);
  return matrix;
}

// Of each entry, in fp64.
std::vector<double> orthogonal(std::vector<double> entries) {
  double squares = 0;
  for (const double x : entries) squares += x * x;
  for (double& x : entries) x /= std::max(std::sqrt(squares), 1e-7);
  for (int i = 0; i < 5; ++i)
    for (double& x : entries) x = 3.4445 * x - 4.7750 * std::pow(x, 3) + 2.0315 * std::pow(x, 5);
  return entries;
}

const arch::UpdateRule& muon() {
  static const arch::UpdateRule rule{.optimizer = &arch::optimizer_spec("muon")};
  return rule;
}

struct Case {
  int64_t rows, columns;
  bool nesterov, decay;
  config::MuonScale scale;
};

// Three steps; the gradient counts half.
void expect_formula(const Case& c) {
  const config::OptimizerSection options{
      .weight_decay = 0.2, .nesterov = c.nesterov, .ns_precision = config::Precision::kFp32, .muon_scale = c.scale};
  std::vector<double> value(kShort), momentum(kShort, 0.0);
  for (size_t i = 0; i < value.size(); ++i) value[i] = 0.3 * std::cos(static_cast<double>(i));
  Parameter parameter{.value = diagonal(c.rows, c.columns, value),
                      .grad = at::zeros({c.rows, c.columns}),
                      .slots = {at::zeros({c.rows, c.columns})},
                      .copy = at::zeros({c.rows, c.columns}, at::kBFloat16),
                      .decay = c.decay,
                      .rule = muon()};
  const auto rows = static_cast<double>(c.rows), columns = static_cast<double>(c.columns);
  const double factor =
      c.scale == config::MuonScale::kOriginal ? std::sqrt(std::max(1.0, rows / columns)) : 0.2 * std::sqrt(std::max(rows, columns));
  for (int64_t step = 1; step <= 3; ++step) {
    const double lr = 0.01 * static_cast<double>(step);
    std::vector<double> gradient(kShort), direction(kShort);
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = 2 + std::sin(static_cast<double>(i) + static_cast<double>(step));
    parameter.grad.copy_(diagonal(c.rows, c.columns, gradient));
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double g = 0.5 * gradient[i];
      momentum[i] = 0.95 * momentum[i] + 0.05 * g;
      direction[i] = c.nesterov ? 0.05 * g + 0.95 * momentum[i] : momentum[i];
    }
    direction = orthogonal(direction);
    for (size_t i = 0; i < value.size(); ++i)
      value[i] = value[i] * (c.decay ? 1 - lr * 0.2 : 1) - lr * factor * direction[i];
    optim::step({parameter}, options, {.lr = lr, .number = step, .grad_scale = 0.5});
    EXPECT_LT(parameter.slots[0].sub(diagonal(c.rows, c.columns, momentum)).abs().max().item<double>(), 1e-6);
    EXPECT_LT(parameter.value.sub(diagonal(c.rows, c.columns, value)).abs().max().item<double>(), 2e-6) << step;
    EXPECT_TRUE(parameter.grad.equal(diagonal(c.rows, c.columns, gradient)));
    EXPECT_TRUE(parameter.copy.equal(parameter.value.to(at::kBFloat16)));
  }
}

TEST(Muon, FollowsTheFormulaForSeveralSteps) {
  for (const auto& [rows, columns] : Shapes{{kShort, kShort}, {kShort, 9}, {12, kShort}})
    for (const config::MuonScale scale : {config::MuonScale::kOriginal, config::MuonScale::kMatchRmsAdamW})
      for (const bool nesterov : {true, false})
        for (const bool decay : {true, false})
          expect_formula({.rows = rows, .columns = columns, .nesterov = nesterov, .decay = decay, .scale = scale});
}

// The quintic keeps singular values between the bounds that Jordan et al. give.
TEST(Muon, BringsSingularValuesNearOne) {
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
    for (const auto& [rows, columns] : Shapes{{24, 64}, {64, 24}}) {
      const at::Tensor x = kMuon.orthogonal(at::eye(rows, columns).add_(at::randn({rows, columns}), 0.05), {.ns_precision = precision});
      EXPECT_EQ(x.scalar_type(), precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat);
      EXPECT_EQ(x.size(0), rows);
      EXPECT_EQ(x.size(1), columns);
      const at::Tensor values = at::linalg_svdvals(x.to(at::kFloat));
      EXPECT_GT(values.min().item<double>(), 0.5);
      EXPECT_LT(values.max().item<double>(), 1.5);
    }
}

// Nothing is divided by zero, and the argument is left alone.
TEST(Muon, AGradientOfZeroMovesNothing) {
  const at::Tensor zeros = at::zeros({3, 4});
  EXPECT_TRUE(kMuon.orthogonal(zeros, {.ns_precision = config::Precision::kFp32}).equal(zeros));
  const at::Tensor ones = at::zeros({3, 4}).fill_(1);
  kMuon.orthogonal(ones, {.ns_precision = config::Precision::kFp32});
  EXPECT_TRUE(ones.equal(at::zeros({3, 4}).fill_(1)));
}

// As of an expert that no token comes to any more, until squares are below the least number there is.
TEST(Muon, StaysFiniteWhileMomentumFades) {
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
    for (const double scale : {1.0, 1e-6, 1e-8, 1e-20, 1e-38, 1e-44, 0.0}) {
      const at::Tensor x = kMuon.orthogonal(at::randn({24, 16}).mul(scale), {.ns_precision = precision});
      EXPECT_TRUE(x.isfinite().all().item<bool>()) << scale;
      EXPECT_LT(x.abs().max().to(at::kFloat).item<double>(), 1.5) << scale;
    }
}

TEST(Muon, IsChosenByItsSpecAndUpdatesMatricesAlone) {
  const auto ones = [](at::IntArrayRef shape) { return at::zeros(shape).fill_(1); };
  Parameter chosen{.value = ones({4, 4}), .grad = ones({4, 4}), .slots = {at::zeros({4, 4})}, .rule = muon()};
  Parameter direct{.value = ones({4, 4}), .grad = ones({4, 4}), .slots = {at::zeros({4, 4})}};
  const StepPoint point{.lr = 0.1};
  step({chosen}, {}, point);
  kMuon.apply(direct, kMuon.orthogonal(kMuon.direction(direct, {}, point), {}), {4, 4}, {}, point);
  EXPECT_TRUE(chosen.value.equal(direct.value));
  EXPECT_FALSE(chosen.value.equal(ones({4, 4})));
  EXPECT_THROW(step({{.value = ones({4}), .grad = ones({4}), .slots = {at::zeros({4})}, .rule = muon()}}, {}, point), InternalError);
  // By element the momentum alone: 0.95 m + 0.05 g.
  const std::array<double, 2> before = {3, 2};
  std::array<double, 2> after{}, rounding{};
  update_formula(muon(), {}, point, true)(before, 0.5, after, rounding);
  EXPECT_DOUBLE_EQ(after[0], 3);
  EXPECT_DOUBLE_EQ(after[1], 0.95 * 2 + 0.05 * 0.5);
}

}  // namespace
}  // namespace lockstep::optim
