// The passes of a gated norm (gated_norm.h) on the CPU, a row at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::nn {

// x, z, weight fp32 or bf16, of one dtype; [rows, n] views with contiguous last dim. y = x silu(z), fp32 inside.
struct GatedRows {
  at::Tensor x, z;
  at::Tensor weight;   // [n]; undefined: no norm
  int64_t groups = 0;  // equal parts of n; 0: no norm
};

// [rows, groups] fp32: sums of y^2.
at::Tensor gated_squares_cpu(const GatedRows& rows);
// y rstd weight [rows, n] contiguous; rstd [rows, groups].
at::Tensor gated_outputs_cpu(const GatedRows& rows, const at::Tensor& rstd);
// [rows, groups] fp32: sums of dout weight y.
at::Tensor gated_along_cpu(const GatedRows& rows, const at::Tensor& dout);
// With `shares` [rows, groups] = rstd^2 / columns * those sums: dy = rstd (dout weight - y shares). dz is written; -> dx [rows, n].
at::Tensor gated_backward_cpu(const GatedRows& rows, const at::Tensor& rstd, const at::Tensor& shares, const at::Tensor& dout, const at::Tensor& dz);
// Adds the sums of dout y rstd to dweight [n] fp32, in an order that depends on the number of rows alone.
void gated_backward_weight_cpu(const GatedRows& rows, const at::Tensor& rstd, const at::Tensor& dout, const at::Tensor& dweight);

}  // namespace lockstep::nn
