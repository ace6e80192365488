// Parameters of two layouts after steps with the same gradients but for rounding; for the tests of this room.
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

struct SameValues {
  double lr = 1e-3;
  double gradient_bound = 1e-5;  // of how far gradients may differ, as a share of their largest element
  double rounding = 0x1p-22;     // of a value's own size
};

// After the first step, in which AdamW moves every element by the sign of its gradient and by its decay: by the same where
// the gradient stands out from its rounding, and by two learning rates less or more elsewhere.
inline void expect_same_values(const std::map<std::string, at::Tensor>& actual, const std::map<std::string, at::Tensor>& expected,
                               const std::map<std::string, at::Tensor>& gradients, const SameValues& options) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) {
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
