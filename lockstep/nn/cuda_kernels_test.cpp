// cuda_kernels.h against the CPU's layers, LibTorch and autograd: with a GPU the kernels on it, else what stands in for them,
// on the CPU. A build with kernels fails here on a machine without a GPU: it cannot run them.
#include "lockstep/nn/cuda_kernels.h"

#include <ATen/Context.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <vector>

#include "lockstep/nn/activation_cpu.h"
#include "lockstep/nn/cross_entropy.h"
#include "support/tensors.h"

namespace lockstep::nn::cuda {
namespace {

using testing::random;

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double bound) {
  testing::expect_close(actual, expected, "", bound);
}

at::Device device() { return at::hasCUDA() ? at::kCUDA : at::kCPU; }

class Kernels : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor there(const at::Tensor& tensor) const {
    return tensor.to(device()).to(GetParam(), false, /*copy=*/true);
  }
  at::Tensor here(const at::Tensor& tensor) const { return tensor.cpu().to(at::kFloat); }
  // What the type can hold of it.
  at::Tensor rounded(const at::Tensor& tensor) const { return tensor.to(GetParam()).to(at::kFloat); }
  double bound() const { return GetParam() == at::kFloat ? 1e-5 : 0.02; }
};

TEST_P(Kernels, Nonlinearities) {
  for (const int64_t size : {8, 37}) {
    const at::Tensor h = rounded(random("h", {3, 5, 2 * size})), dy = rounded(random("dy", {3, 5, size}));
    at::Tensor expected = h.clone(), actual = there(h);
    expect_close(here(swiglu(actual)), swiglu_cpu(h), bound());
    swiglu_backward_cpu(dy, expected);
    swiglu_backward(there(dy), actual);
    expect_close(here(actual), expected, bound());
    expected = dy.clone();
    actual = there(dy);
    gelu_tanh_backward_cpu(rounded(h.narrow(-1, 0, size).contiguous()), expected);
    gelu_tanh_backward(there(h.narrow(-1, 0, size).contiguous()), actual);
    expect_close(here(actual), expected, bound());
  }
}

TEST_P(Kernels, RotationOfAView) {
  const at::Tensor qkv = rounded(random("qkv", {2, 3, 4, 10}));
  const at::Tensor angle = random("angle", {3, 3});
  at::Tensor turned = there(qkv);
  // Heads 1 and 2, the first 6 of their elements.
  const at::Tensor view = turned.narrow(2, 1, 2).narrow(3, 0, 6);
  const at::Tensor cosine = there(angle.cos()), sine = there(angle.sin());
  rotate(view, cosine, sine, 1);
  at::Tensor expected = qkv.clone();
  const at::Tensor part = qkv.narrow(2, 1, 2);
  const at::Tensor first = part.narrow(3, 0, 3), second = part.narrow(3, 3, 3);
  const at::Tensor c = here(cosine).unsqueeze(1), s = here(sine).unsqueeze(1);
  expected.narrow(2, 1, 2).narrow(3, 0, 3).copy_(first.mul(c).sub(second.mul(s)));
  expected.narrow(2, 1, 2).narrow(3, 3, 3).copy_(second.mul(c).add(first.mul(s)));
  expect_close(here(turned), expected, bound());
  rotate(view, cosine, sine, -1);
  expect_close(here(turned), qkv, 2 * bound());
}

TEST_P(Kernels, CrossEntropy) {
  for (const int64_t columns : {8, 1001}) {
    const at::Tensor logits = rounded(random("logits", {4, columns}, 3));
    const at::Tensor targets = at::tensor({int64_t{0}, columns - 1, kIgnoredTarget, int64_t{5}}, at::kLong);
    at::Tensor expected = logits.clone(), actual = there(logits);
    const double loss = nn::cross_entropy_(expected, targets).item<double>();
    EXPECT_NEAR(cuda::cross_entropy_(actual, targets.to(actual.device())).item<double>(), loss, 1e-4);
    expect_close(here(actual), expected, bound());
    const at::Tensor beyond = at::full({4}, columns, at::kLong);
    EXPECT_TRUE(std::isnan(cuda::cross_entropy_(there(logits), beyond.to(actual.device())).item<double>()));
  }
}

TEST_P(Kernels, NormsWithAndWithoutResidual) {
  for (const bool layer : {true, false})
    for (const bool with_residual : {true, false})
      for (const int64_t size : {16, 301}) {
        const std::vector<int64_t> shape = {2, 9, size};
        const at::Tensor x = rounded(random("x", shape)), dy = rounded(random("dy", shape));
        const at::Tensor residual = with_residual ? rounded(random("residual", shape)) : at::Tensor();
        const at::Tensor weight = rounded(random("weight", {size})).requires_grad_(true);
        const at::Tensor bias = layer ? rounded(random("bias", {size})).requires_grad_(true) : at::Tensor();
        const at::Tensor sum = testing::leaf(with_residual ? rounded(x.add(residual)) : x);
        const at::Tensor y = layer ? at::layer_norm(sum, {size}, weight, bias, 1e-5) : at::rms_norm(sum, {size}, weight, 1e-5);
        y.backward(dy);

        const auto optional = [&](const at::Tensor& tensor) { return tensor.defined() ? there(tensor.detach()) : tensor; };
        const NormResult result = norm(there(x), optional(residual), there(weight.detach()), optional(bias), 1e-5);
        expect_close(here(result.y), y.detach(), bound());
        expect_close(here(result.sum), sum.detach(), bound());
        const NormKept kept{.x = result.sum, .mean = result.mean, .rstd = result.rstd};
        const at::Tensor around = rounded(random("around", shape));
        expect_close(here(norm_backward(there(dy), kept, there(weight.detach()), {})), sum.grad(), bound());
        expect_close(here(norm_backward(there(dy), kept, there(weight.detach()), there(around))), sum.grad().add(around), bound());
        const auto zeros = [&] { return at::zeros({size}, result.rstd.options()); };
        const at::Tensor dweight = zeros(), dbias = layer ? zeros() : at::Tensor(), of_bias = zeros();
        for (int twice = 0; twice < 2; ++twice) norm_weight_backward(there(dy), kept, dweight, dbias);
        expect_close(here(dweight), weight.grad().mul(2), bound());
        if (layer) expect_close(here(dbias), bias.grad().mul(2), bound());
        bias_backward(there(dy), of_bias);
        expect_close(here(of_bias), dy.sum({0, 1}), bound());
      }
}

TEST_P(Kernels, AdamWAndTheSumOfSquares) {
  std::vector<AdamWTensors> pieces;
  const auto wide = [&](std::string_view name, int64_t size) {
    return random(name, {size}).to(device());
  };
  for (int i = 0; i < 60; ++i) {  // more than a launch takes
    const int64_t size = 1 + 97 * i;
    pieces.push_back({.value = wide("value", size),
                      .grad = wide("grad", size),
                      .exp_avg = wide("m", size),
                      .exp_avg_sq = wide("v", size).square_(),
                      .copy = i % 3 == 0 ? wide("copy", size).to(at::kBFloat16) : at::Tensor(),
                      .decay = i % 2 == 0});
  }
  std::vector<AdamWTensors> expected;
  for (const AdamWTensors& p : pieces)
    expected.push_back({p.value.cpu().clone(), p.grad.cpu().clone(), p.exp_avg.cpu().clone(), p.exp_avg_sq.cpu().clone(), {}, p.decay});
  EXPECT_NEAR(square_sum(pieces[59].grad).item<double>() / expected[59].grad.to(at::kDouble).square().sum().item<double>(), 1, 1e-12);
  adamw(pieces, {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3, .scale = 0.25});
  for (size_t i = 0; i < pieces.size(); ++i) {
    AdamWTensors& e = expected[i];
    at::_fused_adamw_({e.value}, {e.grad}, {e.exp_avg}, {e.exp_avg_sq}, {}, {at::full({}, 3.0)}, 0.01, 0.9, 0.95,
                      e.decay ? 0.1 : 0.0, 1e-8, false, false, at::full({}, 4.0));
    expect_close(pieces[i].value.cpu(), e.value, 1e-6);
    expect_close(pieces[i].exp_avg.cpu(), e.exp_avg, 1e-6);
    expect_close(pieces[i].exp_avg_sq.cpu(), e.exp_avg_sq, 1e-6);
    EXPECT_TRUE(!pieces[i].copy.defined() || pieces[i].copy.equal(pieces[i].value.to(at::kBFloat16)));
  }
}

// From moments of zero: what is left of one gradient, to the last digits, where 1 less the rounded decay would not be.
TEST(FlatKernels, AdamWTakesTheDecaysAsTheyAreWritten) {
  const at::Tensor grad = random("grad", {1000});
  const auto zeros = [&] { return at::zeros_like(grad).to(device()); };
  const AdamWTensors piece{.value = zeros(), .grad = grad.to(device()), .exp_avg = zeros(), .exp_avg_sq = zeros(), .copy = {}, .decay = false};
  adamw({piece}, {.lr = 0.01, .beta1 = 0.95, .beta2 = 0.9999, .eps = 1e-8, .weight_decay = 0, .step = 1, .scale = 1});
  const at::Tensor g = grad.to(at::kDouble);
  const auto expect_digits = [](const at::Tensor& found, const at::Tensor& expected) {
    EXPECT_LE(found.cpu().to(at::kDouble).div(expected).sub(1).abs().max().item<double>(), 0x1p-21);
  };
  expect_digits(piece.exp_avg, g.mul(0.05));
  expect_digits(piece.exp_avg_sq, g.square().mul(0.0001));
}

TEST(FlatKernels, MarksPiecesThatAreNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto there = [](at::Tensor values) { return values.to(device()); };
  at::Tensor flags = at::zeros({6}, at::TensorOptions(at::kInt).device(device()));
  flags.select(0, 4).fill_(1);  // found before
  at::Tensor high = random("high", {3000}), low = random("low", {7}), none = random("none", {2, 50});
  high.select(0, 2999).fill_(kInfinity);
  low.select(0, 0).fill_(-kInfinity);
  none.select(0, 1).select(0, 3).fill_(std::numeric_limits<float>::quiet_NaN());
  mark_nonfinite({{there(high), 0},
                  {there(low), 1},
                  {there(none), 2},
                  {there(random("finite", {100})), 0},
                  {there(random("finite", {100}, 5e37)), 3},
                  {there(random("finite", {5})), 4},
                  {there(at::zeros({0})), 5}},
                 flags);
  EXPECT_TRUE(flags.cpu().equal(at::tensor({1, 1, 1, 0, 1, 0}, at::kInt)));
}

TEST(FlatKernels, MasksOfDropoutAreTheCpus) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{3}, (uint64_t{1} << 34) + 2}) {
    const MaskDraw draw{.numbers = philox_stream(3, "site"), .first = first, .probability = 0.3};
    const at::Tensor mask = dropout_mask(draw, {7, 1001}, device());
    EXPECT_EQ(mask.device().type(), device().type());
    EXPECT_TRUE(mask.cpu().equal(dropout_mask_cpu(draw, {7, 1001})));
    std::vector<float> numbers(7007);
    RandomStream(3, "site").uniform(first, numbers);
    EXPECT_TRUE(mask.cpu().view({-1}).equal(at::tensor(numbers).ge(0.3)));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Kernels, ::testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace lockstep::nn::cuda
