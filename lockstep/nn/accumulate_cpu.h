// Adding to fp32 gradient buffers on the CPU, each operand read once.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// grad += product, which is bf16 of the same shape; both contiguous.
void add_cast_cpu(const at::Tensor& grad, const at::Tensor& product);

// The same for a part of a gradient, grad [m, n] with any distance between its rows, by the calling thread.
void add_cast_part_cpu(const at::Tensor& grad, const at::Tensor& product);

// grad [n] += the sum over the rows of `rows` [m, n] (fp32 or bf16, contiguous), in fp32. The order of the sums depends on
// m alone: the same bits with any number of threads.
void add_row_sum_cpu(const at::Tensor& grad, const at::Tensor& rows);

}  // namespace lockstep::nn
