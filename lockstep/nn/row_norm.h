// The steps of an RMSNorm of rows of which others may have parts: what is summed over them stands between. On the host a row at a time, on a device
// by LibTorch's operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::nn {

// M rows of n elements here, fp32 or bf16; all inside in fp32. numbers [M, columns] fp32, contiguous.
struct NormedRows {
  at::Tensor x;       // [M, n] contiguous: before the norm
  at::Tensor rstd;    // [M] fp32 contiguous
  at::Tensor weight;  // [n]
  bool plus_one = false;  // multiplies by 1 + weight
};
// numbers[:, column] = scale * sum(x^2)
void row_squares(const at::Tensor& x, const at::Tensor& numbers, int64_t column, double scale);
// y [M, n], rows at any distance: x * rstd * weight
void row_normalise(const NormedRows& rows, const at::Tensor& y);
// numbers[:, column] = sum(dy * weight * x) * rstd; dy [M, n] contiguous
void row_products(const NormedRows& rows, const at::Tensor& dy, const at::Tensor& numbers, int64_t column);
// dx [M, n], rows at any distance: rstd * (dy * weight - x * rstd * scale * numbers[:, column])
void row_gradient(const NormedRows& rows, const at::Tensor& dy, const at::Tensor& numbers, int64_t column, double scale, const at::Tensor& dx);

}  // namespace lockstep::nn
