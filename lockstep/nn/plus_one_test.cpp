// RMSNorms that multiply by 1 + weight, of rows and of heads, against LibTorch's autograd.
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/nn/head_norm.h"
#include "lockstep/nn/norm.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::parameter;
using testing::random;

constexpr double kEps = 1e-3;

at::Tensor reference(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, true) + kEps) * (weight + 1);
}

TEST(PlusOne, NormMatchesAutograd) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(dtype);
    const double bound = dtype == at::kFloat ? 1e-5 : 0.02;
    const Parameter weight = parameter("w", {21}, 0.3, dtype);
    RmsNorm norm(weight, kEps, /*plus_one=*/true);
    const at::Tensor x = random("x", {2, 5, 21}).to(dtype), dy = random("dy", x.sizes()).to(dtype), residual = random("r", x.sizes()).to(dtype);
    const at::Tensor expected_x = leaf(x), expected_weight = leaf(weight.value), expected = reference(expected_x, expected_weight);
    expected.backward(dy.to(at::kFloat));
    Norm::Saved saved;
    expect_close(norm.forward(x, &saved), expected, "y", bound);
    expect_close(norm.backward_input(dy, saved, residual), expected_x.grad() + residual.to(at::kFloat), "dx", bound);
    norm.backward_weight(saved);
    expect_close(weight.grad, expected_weight.grad(), "gradient of the weight", bound);
  }
}

TEST(PlusOne, OfZerosIsANormOfOnes) {
  const Parameter zeros{.value = at::zeros({17}), .grad = at::zeros({17})}, ones{.value = at::zeros({17}) + 1, .grad = at::zeros({17})};
  const at::Tensor x = random("x", {3, 4, 17});
  EXPECT_TRUE(RmsNorm(zeros, kEps, true).forward(x, nullptr).equal(RmsNorm(ones, kEps).forward(x, nullptr)));
}

TEST(PlusOne, HeadNormMatchesAutograd) {
  const Parameter q_weight = parameter("q", {6}, 0.3), k_weight = parameter("k", {6}, 0.3);
  HeadNorm norm(q_weight, k_weight, kEps, /*plus_one=*/true);
  const at::Tensor x = random("x", {2, 5, 5, 6}), dy = random("dy", x.sizes());
  const at::Tensor expected_x = leaf(x), expected_q = leaf(q_weight.value), expected_k = leaf(k_weight.value);
  const at::Tensor of_q = reference(expected_x.narrow(2, 0, 3), expected_q), of_k = reference(expected_x.narrow(2, 3, 2), expected_k);
  of_q.backward(dy.narrow(2, 0, 3));
  of_k.backward(dy.narrow(2, 3, 2));
  const at::Tensor y = x.clone(), dx = dy.clone();
  HeadNorm::Saved saved;
  norm.forward(y.narrow(2, 0, 3), y.narrow(2, 3, 2), &saved);
  norm.backward_input(dx.narrow(2, 0, 3), dx.narrow(2, 3, 2), saved);
  norm.backward_weight(saved);
  expect_close(y.narrow(2, 0, 3), of_q, "q");
  expect_close(y.narrow(2, 3, 2), of_k, "k");
  expect_close(dx, expected_x.grad(), "dx");
  expect_close(q_weight.grad, expected_q.grad(), "gradient of q's weight");
  expect_close(k_weight.grad, expected_k.grad(), "gradient of k's weight");
}

}  // namespace
}  // namespace lockstep::nn
