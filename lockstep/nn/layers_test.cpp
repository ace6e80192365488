// Linear, norms, nonlinearities and rotary positions against LibTorch's autograd.
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/add.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include <functional>

#include "lockstep/nn/activation.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/norm.h"
#include "lockstep/nn/rotary.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::parameter;
using testing::random;

struct Case {
  std::vector<int64_t> shape;  // of x
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
};
// bf16 has 8 bits: every operator rounds by up to 2^-9 of its result.
const std::vector<Case> kCases = {{.shape = {1, 1, 4}},
                                  {.shape = {2, 7, 12}},
                                  {.shape = {3, 5, 65}},
                                  {.shape = {2, 7, 64}, .dtype = at::kBFloat16, .bound = 0.02}};

// Runs forward, I and W twice (gradients add up) and compares with autograd over `reference`.
template <typename Layer>
void check(Layer& layer, const std::function<at::Tensor(const at::Tensor&, const std::vector<at::Tensor>&)>& reference,
           std::vector<Parameter> parameters, const Case& c) {
  std::vector<at::Tensor> leaves;
  for (const Parameter& p : parameters) leaves.push_back(leaf(p.value));
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    const at::Tensor x = random(microbatch == 0 ? "x0" : "x1", c.shape).to(c.dtype);
    const at::Tensor expected_x = leaf(x);
    const at::Tensor expected = reference(expected_x, leaves);
    const at::Tensor dy = random("dy", expected.sizes()).to(c.dtype);
    expected.backward(dy.to(at::kFloat));

    typename Layer::Saved saved;
    expect_close(layer.forward(x, nullptr), expected, "y without saved", c.bound);
    expect_close(layer.forward(x, &saved), expected, "y", c.bound);
    std::vector<at::Tensor> before;
    for (const Parameter& p : parameters) before.push_back(p.grad.clone());
    expect_close(layer.backward_input(dy, saved), expected_x.grad(), "dx", c.bound);
    for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(before[i].equal(parameters[i].grad)) << "I touched W";
    layer.backward_weight(saved);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    expect_close(parameters[i].grad, leaves[i].grad(), "gradient", c.bound);
  }
}

TEST(Linear, MatchesAutograd) {
  for (const Case& c : kCases) {
    const int64_t in = c.shape.back();
    const Parameter weight = parameter("w", {9, in}, 0.3, c.dtype);
    const Parameter bias = parameter("b", {9}, 1, c.dtype);
    Linear with_bias(weight, bias);
    check<Linear>(
        with_bias, [](const auto& x, const auto& p) { return at::linear(x, p[0], p[1]); }, {weight, bias}, c);
    const Parameter alone = parameter("w2", {5, in}, 0.3, c.dtype);
    Linear without_bias(alone);
    check<Linear>(
        without_bias, [](const auto& x, const auto& p) { return at::linear(x, p[0]); }, {alone}, c);
  }
}

TEST(Linear, WeightGradientReleasesWhatWasKept) {
  Linear linear(parameter("w", {3, 4}));
  Linear::Saved saved;
  linear.forward(random("x", {1, 2, 4}), &saved);
  linear.backward_input(random("dy", {1, 2, 3}), saved);
  linear.backward_weight(saved);
  EXPECT_FALSE(saved.x.defined() || saved.dy.defined());
}

TEST(Norms, LayerNormMatchesAutograd) {
  for (const Case& c : kCases) {
    const Parameter weight = parameter("w", {c.shape.back()}, 1, c.dtype);
    const Parameter bias = parameter("b", {c.shape.back()}, 1, c.dtype);
    LayerNorm norm(weight, bias, 1e-5);
    const auto reference = [](const at::Tensor& x, const std::vector<at::Tensor>& p) {
      return at::layer_norm(x, {x.size(-1)}, p[0], p[1], 1e-5);
    };
    check<Norm>(norm, reference, {weight, bias}, c);
  }
}

TEST(Norms, TheSumOfABranchAndTheGradientPastTheNorm) {
  for (const Case& c : kCases) {
    const Parameter weight = parameter("w", {c.shape.back()}, 1, c.dtype);
    const Parameter bias = parameter("b", {c.shape.back()}, 1, c.dtype);
    LayerNorm layer_norm(weight, bias, 1e-5);
    RmsNorm rms_norm(weight, 1e-5);
    for (Norm* norm : {static_cast<Norm*>(&layer_norm), static_cast<Norm*>(&rms_norm)}) {
      const at::Tensor x = random("x", c.shape).to(c.dtype);
      at::Tensor branch = random("branch", c.shape).to(c.dtype);
      const at::Tensor dy = random("dy", c.shape).to(c.dtype);
      const at::Tensor sum = at::add(branch, x);
      Norm::Saved alone, together;
      const at::Tensor expected = norm->forward(sum, &alone);
      EXPECT_TRUE(norm->forward_sum(branch, x, &together).equal(expected));
      EXPECT_TRUE(branch.equal(sum));
      EXPECT_TRUE(together.x.is_same(branch));
      const at::Tensor past = at::add(norm->backward_input(dy, alone), x);
      expect_close(norm->backward_input(dy, together, x), past, "dx", c.bound);
    }
  }
}

TEST(Norms, RmsNormMatchesAutograd) {
  for (const Case& c : kCases) {
    const Parameter weight = parameter("w", {c.shape.back()}, 1, c.dtype);
    RmsNorm norm(weight, 1e-3);
    const auto reference = [](const at::Tensor& x, const std::vector<at::Tensor>& p) {
      return x * at::rsqrt(x.square().mean(-1, true) + 1e-3) * p[0];
    };
    check<Norm>(norm, reference, {weight}, c);
  }
}

TEST(Activations, MatchAutograd) {
  const auto gelu = [](const at::Tensor& h) { return at::gelu(h, "tanh"); };
  const auto swiglu = [](const at::Tensor& h) {
    const int64_t size = h.size(-1) / 2;
    return at::silu(h.narrow(-1, 0, size)) * h.narrow(-1, size, size);
  };
  const auto check = [](const Activation& activation, const std::function<at::Tensor(const at::Tensor&)>& reference,
                        at::ScalarType dtype, double bound) {
    const at::Tensor h = random("h", {2, 7, 10}).to(dtype);
    const at::Tensor expected_h = leaf(h);
    const at::Tensor expected = reference(expected_h);
    const at::Tensor dy = random("dy", expected.sizes()).to(dtype);
    expected.backward(dy.to(at::kFloat));
    expect_close(activation.forward(h), expected, "y", bound);
    const at::Tensor dh = activation.backward(dy, h);
    expect_close(dh, expected_h.grad(), "dh", bound);
    EXPECT_TRUE(dh.is_same(h) || dh.data_ptr() == h.data_ptr()) << "the gradient takes the place of h";
  };
  check(GeluTanh(), gelu, at::kFloat, 1e-5);
  check(SwiGlu(), swiglu, at::kFloat, 1e-5);
  check(GeluTanh(), gelu, at::kBFloat16, 0.02);
  check(SwiGlu(), swiglu, at::kBFloat16, 0.02);
}

TEST(Rotary, RotatesPairsByPositionTimesFrequency) {
  const Rotary rotary(/*positions=*/32, /*head_size=*/6, /*theta=*/100, at::TensorOptions(at::kFloat));
  const at::Tensor x = random("x", {2, 5, 3, 6});
  at::Tensor y = x.clone();
  rotary.apply(y, /*start=*/4);
  for (int64_t s = 0; s < 5; ++s) {
    for (int64_t j = 0; j < 3; ++j) {
      const double angle = static_cast<double>(4 + s) * std::pow(100.0, -2.0 * static_cast<double>(j) / 6.0);
      const double a = x[1][s][2][j].item<double>();
      const double b = x[1][s][2][j + 3].item<double>();
      EXPECT_NEAR(y[1][s][2][j].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-5);
      EXPECT_NEAR(y[1][s][2][j + 3].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-5);
    }
  }
  rotary.apply_inverse(y, 4);
  expect_close(y, x, "inverse");
}

}  // namespace
}  // namespace lockstep::nn
