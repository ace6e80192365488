// Adding to fp32 gradient buffers: the only place where weight gradients are written.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// grad [m, n] += a [m, k] @ b [k, n]. fp32 operands: one GEMM straight into the buffer; bf16: a bf16 product, then
// added.
void accumulate_matmul(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b);

// grad [n] += the sum over the rows of `rows` [m, n], summed in fp32.
void accumulate_row_sum(const at::Tensor& grad, const at::Tensor& rows);

// grad[index[i]] += rows[i] for i = 0, 1, ...; index [m] int64, rows [m, n]. The order of the sums is fixed: the same
// bits on every run.
void accumulate_rows(const at::Tensor& grad, const at::Tensor& index, const at::Tensor& rows);

}  // namespace lockstep::nn
