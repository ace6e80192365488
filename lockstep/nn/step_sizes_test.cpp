// Step sizes against LibTorch's softplus, clamp and autograd.
#include "lockstep/nn/step_sizes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::random;

void check(double least, double most, at::ScalarType dtype, double bound) {
  const at::Tensor all = random("dt", {2, 70, 8}, 3).to(dtype), dt = all.narrow(2, 3, 5), bias = random("bias", {5});
  dt.select(1, 4).fill_(30);  // where softplus is linear
  dt.select(1, 5).fill_(-90);
  const at::Tensor expected_dt = leaf(dt), expected_bias = leaf(bias);
  const at::Tensor expected = at::softplus(expected_dt + expected_bias).clamp(least, most);
  const at::Tensor ddelta = random("ddelta", dt.sizes());
  expected.backward(ddelta);

  const at::Tensor delta = step_sizes(dt, bias, least, most);
  EXPECT_TRUE(delta.is_contiguous() && delta.scalar_type() == at::kFloat);
  expect_close(delta, expected, "delta");
  const at::Tensor dbias = at::zeros({5}) + 1, ddt = at::zeros_like(all).narrow(2, 3, 5);
  step_sizes_backward(dt, bias, least, most, ddelta, dbias, ddt);
  expect_close(ddt, expected_dt.grad(), "ddt", bound);
  expect_close(dbias - 1, expected_bias.grad(), "dbias");
}

TEST(StepSizes, MatchAutograd) {
  check(0, std::numeric_limits<double>::infinity(), at::kFloat, 1e-5);
  check(0, std::numeric_limits<double>::infinity(), at::kBFloat16, 4e-3);
}

TEST(StepSizes, BeyondALimitHaveNoGradient) { check(0.5, 2, at::kFloat, 1e-5); }

}  // namespace
}  // namespace lockstep::nn
