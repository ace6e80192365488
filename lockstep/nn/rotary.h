// Rotary position embedding (Su et al., RoFormer 2021), rotate-half form: of the R first elements of a head j pairs with j + R/2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/arch/model_config.h"

namespace lockstep::nn {

// A value: copies share the two tables of [positions, R/2], angle(p, j) = p * f(theta^(-2j/R)); f stretches frequencies as
// `scaling` says (arch/model_config.h) and is the identity without; YaRN scales cosines and sines too. Frequencies are fp32, by the operations that
// transformers takes: far into a text one bit of them is seen.
class Rotary {
 public:
  // size: R, even.
  Rotary(int64_t positions, int64_t size, double theta, const at::TensorOptions& options,
         const arch::RopeScaling& scaling = {});

  // Rotates the first R of K elements of x [B, S, heads, K] in place, S positions starting at `start`. apply_inverse is its backward, which needs nothing of the
  // input: the inverse rotation, where YaRN scales with the same factor again.
  void apply(const at::Tensor& x, int64_t start = 0) const { rotate(x, start, 1); }
  void apply_inverse(const at::Tensor& x, int64_t start = 0) const { rotate(x, start, -1); }

  // The same with a position of each token: positions [B, S] int64, contiguous, where x is (nn::TokenPlaces::positions). Same bits.
  void apply(const at::Tensor& x, const at::Tensor& positions) const { rotate(x, positions, 1); }
  void apply_inverse(const at::Tensor& x, const at::Tensor& positions) const { rotate(x, positions, -1); }

 private:
  at::Tensor turned(const at::Tensor& x) const;  // the elements that are rotated: a view
  void rotate(const at::Tensor& x, int64_t start, double direction) const;
  void rotate(const at::Tensor& x, const at::Tensor& positions, double direction) const;
  at::Tensor cos_;
  at::Tensor sin_;
};

}  // namespace lockstep::nn
