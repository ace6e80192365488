// What layers and the optimizer do in one pass on a GPU. Chosen at link time: with the preset cuda the kernels of nn/cuda,
// else the same from LibTorch's operators (cuda_kernels_aten.cpp), which work on every device but take several passes.
//
// Tensors: contiguous, on one device, fp32 or bf16, of one type where not said otherwise; statistics fp32. Everything runs
// on the current stream and nothing waits for it. Inside fp32, rounded once. Sums have a fixed order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/nn/dropout_mask.h"

namespace lockstep::nn::cuda {

// As in activation.h; the gradient overwrites h.
void gelu_tanh_backward(const at::Tensor& dy, at::Tensor& h);
at::Tensor swiglu(const at::Tensor& h);  // [..., 2F] -> [..., F]
void swiglu_backward(const at::Tensor& dy, at::Tensor& h);

// x [B, S, heads, K] in place, any strides but that of K, which is 1; cosine, sine [S, K/2] of its type. direction -1: the
// inverse.
void rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, double direction);

// As cross_entropy.h, but that a target beyond the columns makes the loss NaN: the host does not see it.
at::Tensor cross_entropy_(at::Tensor logits, const at::Tensor& targets);

struct NormResult {
  at::Tensor y;
  at::Tensor sum;         // x + residual; x where there is none
  at::Tensor mean, rstd;  // [..., 1]; mean only with a bias, that is for LayerNorm
};
// x [..., D]. residual, bias: undefined where there is none; without a bias RMSNorm.
NormResult norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                double eps);

struct NormKept {
  at::Tensor x;  // NormResult::sum
  at::Tensor mean, rstd;
};
// The gradient of `sum`, and so of x and residual alike; plus dresidual, which came by the way around the layer, where
// it is defined.
at::Tensor norm_backward(const at::Tensor& dy, const NormKept& kept, const at::Tensor& weight,
                         const at::Tensor& dresidual);
// Adds to fp32 gradients [D]; bias_grad undefined: RMSNorm.
void norm_weight_backward(const at::Tensor& dy, const NormKept& kept, const at::Tensor& weight_grad,
                          const at::Tensor& bias_grad);
// Adds the sum of dy's rows [..., D] to an fp32 gradient [D].
void bias_backward(const at::Tensor& dy, const at::Tensor& bias_grad);

struct AdamWTensors {
  at::Tensor value, grad, exp_avg, exp_avg_sq;  // fp32; what is used is grad * scale
  at::Tensor copy;                              // bf16, gets the new value; undefined: none
  bool decay = false;
};
struct AdamWSettings {
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;  // from 1
  double scale;  // of gradients: clipping and the count of tokens
};
void adamw(const std::vector<AdamWTensors>& pieces, const AdamWSettings& settings);

// The sum of squares of an fp32 tensor, fp64 0-d on its device.
at::Tensor square_sum(const at::Tensor& values);

// A piece of a gradient, and which flag says what was found in it.
struct WatchedPiece {
  at::Tensor values;  // fp32
  int64_t flag = 0;
};
// flags [n] int32: that of a piece becomes 1 where a value is not finite, and stays what it is otherwise. Any number of
// pieces, also several of one flag.
void mark_nonfinite(const std::vector<WatchedPiece>& pieces, const at::Tensor& flags);

// Whether LibTorch's product of groups of bf16 rows (at::_grouped_mm) runs on the device in one launch and without a wait: on compute
// capability 9 and 10; on others it reads the ends of the groups on the host and multiplies one after the other.
bool multiplies_groups(at::Device device);

// dropout_mask_cpu's bits, on `device`; without our own kernels drawn on the host and copied, which waits.
at::Tensor dropout_mask(const MaskDraw& draw, at::IntArrayRef shape, at::Device device);

}  // namespace lockstep::nn::cuda
