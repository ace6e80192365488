// Step sizes of a state space (Dao and Gu, Transformers are SSMs, 2024): delta = min(max(softplus(dt + bias), least), most). softplus is
// linear above 20, as PyTorch's. Inside fp32.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// dt [B, T, H] fp32 or bf16, last dim contiguous; bias [H] fp32 -> [B, T, H] fp32 contiguous. Without limits: 0 and infinity.
at::Tensor step_sizes(const at::Tensor& dt, const at::Tensor& bias, double least, double most);

// ddelta [B, T, H] fp32 contiguous. Adds to dbias [H] fp32; writes ddt [B, T, H], a view in the dtype of dt with contiguous last dim. Where
// a limit holds, the gradient is zero; on a limit it is not.
void step_sizes_backward(const at::Tensor& dt, const at::Tensor& bias, double least, double most, const at::Tensor& ddelta,
                         const at::Tensor& dbias, const at::Tensor& ddt);

}  // namespace lockstep::nn
