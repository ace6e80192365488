// Normalisation on the CPU, a row at a time: each tensor is read and written once.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// LayerNorm where `bias` is defined, else RMSNorm. fp32 or bf16, statistics and sums in fp32.
struct NormWeights {
  at::Tensor weight;  // [D]
  at::Tensor bias;    // [D]
  double eps;
  bool plus_one = false;  // RMSNorm alone: multiplies by 1 + weight
};

struct NormStatistics {
  at::Tensor mean;  // [..., 1] fp32; undefined for RMSNorm
  at::Tensor rstd;  // [..., 1] fp32
};

// x [..., D] contiguous -> y. Where `branch` [..., D] is defined it becomes branch + x first and is what is normalised.
at::Tensor norm_cpu(const at::Tensor& x, const at::Tensor& branch, const NormWeights& weights, NormStatistics& statistics);

// dx, with `residual` [..., D] added where it is defined.
at::Tensor norm_backward_cpu(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& residual,
                             const NormWeights& weights, const NormStatistics& statistics);

// Adds to the fp32 gradients of the weights. The order of the sums depends on the number of rows alone.
void norm_backward_weight_cpu(const at::Tensor& dy, const at::Tensor& x, const NormStatistics& statistics,
                              const NormWeights& grads);

}  // namespace lockstep::nn
