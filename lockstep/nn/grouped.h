// Products of rows that lie group by group, each group with a matrix of its own: what experts are made of (Gale et al.,
// MegaBlocks, 2022). On the CPU one parallel region runs over tiles of all groups; each tile is a product of a library
// (gemm.h) on one thread, or for a few rows of our own kernel (gemm_rows.h). On a GPU: grouped_gpu.h.
//
// sizes [G]: rows of each group, in order; any may be 0, and their sum is R. Contiguous fp32 or bf16, of one type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "lockstep/nn/grouped_bias.h"

namespace lockstep::nn {

// rows [R, K], weight [G, N, K] -> [R, N]: rows of group g times weight[g]^T, and its bias. bf16: the product is rounded before that.
at::Tensor grouped_multiply(const at::Tensor& rows, const at::Tensor& weight, std::span<const int64_t> sizes, const GroupedBias& bias = {});

// Its gradient by rows: dy [R, N], weight [G, N, K] -> [R, K].
at::Tensor grouped_multiply_input(const at::Tensor& dy, const at::Tensor& weight, std::span<const int64_t> sizes);

// And by weight: grad [G, N, K] fp32 += dy^T x of each group; dy [R, N], x [R, K]. A group without rows adds nothing. bf16: products
// are rounded before they are added, as in accumulate.h.
void accumulate_grouped(const at::Tensor& dy, const at::Tensor& x, std::span<const int64_t> sizes, const at::Tensor& grad);

}  // namespace lockstep::nn
