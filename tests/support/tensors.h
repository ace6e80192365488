// Tensors for tests: random values, leaves of autograd (the oracle), relative error.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <span>
#include <string_view>

#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/layer.h"

namespace lockstep::testing {

// Normal numbers of the stream `name`, times `scale`.
inline at::Tensor random(std::string_view name, at::IntArrayRef shape, double scale = 1) {
  at::Tensor values = at::empty(shape, at::kFloat);
  RandomStream(7, name).normal(0, std::span<float>(values.data_ptr<float>(), static_cast<size_t>(values.numel())));
  return values.mul_(scale);
}

// A copy that autograd follows, in fp32.
inline at::Tensor leaf(const at::Tensor& value) {
  return value.to(at::kFloat, false, /*copy=*/true).requires_grad_(true);
}

// A trainable parameter with a zero gradient.
inline nn::Parameter parameter(std::string_view name, at::IntArrayRef shape, double scale = 1,
                               at::ScalarType dtype = at::kFloat) {
  return {.value = random(name, shape, scale).to(dtype), .grad = at::zeros(shape, at::kFloat)};
}

// max |actual - expected| / max |expected|
inline double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.detach().to(at::kDouble);
  const at::Tensor e = expected.detach().to(at::kDouble);
  const double scale = e.abs().max().item<double>();
  return a.sub(e).abs().max().item<double>() / (scale > 0 ? scale : 1);
}

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, std::string_view what,
                         double bound = 1e-5) {
  ASSERT_TRUE(actual.defined() && expected.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_LE(relative_error(actual, expected), bound) << what;
}

}  // namespace lockstep::testing
