// Gradients of two layouts, and parameters after steps with the same gradients but for rounding; for the tests of this room.
#pragma once

#include <ATen/ops/abs.h>
#include <ATen/ops/any.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

namespace lockstep::engine::testing {

// The largest difference, as a share of the largest element.
inline double error_of(const at::Tensor& actual, const at::Tensor& expected) {
  return at::sub(actual, expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

// A key bias' gradient is zero but for rounding: softmax does not see a shift of all scores.
inline bool is_rounding(const std::string& parameter) { return parameter.find("attention.k.bias") != std::string::npos; }

using Tensors = std::map<std::string, at::Tensor>;  // by parameter

inline void expect_same_gradients(const Tensors& actual, const Tensors& expected, double bound, const std::string& where = "") {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  for (const auto& [name, gradient] : expected) {
    if (is_rounding(name)) continue;
    ASSERT_EQ(actual.at(name).sizes(), gradient.sizes()) << where << " " << name;
    EXPECT_LE(error_of(actual.at(name), gradient), bound) << where << " gradient of " << name;
  }
}

struct SameValues {
  double lr = 1e-3;
  double gradient_bound = 1e-5;  // of how far gradients may differ, as a share of their largest element
  double rounding = 0x1p-22;     // of a value's own size
};

// After the first step, in which AdamW moves every element by the sign of its gradient and by its decay: by the same where
// the gradient stands out from its rounding, and by two learning rates less or more elsewhere.
inline void expect_same_values(const Tensors& actual, const Tensors& expected, const Tensors& gradients, const SameValues& options) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) {
    if (is_rounding(name)) continue;
    ASSERT_TRUE(actual.contains(name)) << name;
    const at::Tensor size = gradients.at(name).abs();
    const at::Tensor stands_out = at::gt(size, std::min(100 * options.gradient_bound, 0.5) * size.max().item<double>());
    const at::Tensor reference = value.to(at::kDouble);
    const at::Tensor away = at::sub(actual.at(name).to(at::kDouble), reference).abs();
    const at::Tensor error = at::sub(away, at::mul(reference.abs(), options.rounding));
    EXPECT_TRUE(stands_out.any().item<bool>()) << name;
    EXPECT_LE(at::mul(error, stands_out).max().item<double>(), 1e-4 * options.lr) << "value of " << name;
    EXPECT_LE(error.max().item<double>(), 2 * options.lr) << "value of " << name;
  }
}

}  // namespace lockstep::engine::testing
