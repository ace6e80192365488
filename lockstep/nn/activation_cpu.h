// The nonlinearities of activation.h on the CPU: one pass over memory, fp32 inside, rounded once on the way out.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// Contiguous tensors, fp32 or bf16. Backward overwrites h with its gradient.
at::Tensor gelu_tanh_cpu(const at::Tensor& h);
void gelu_tanh_backward_cpu(const at::Tensor& dy, at::Tensor& h);
at::Tensor gelu_cpu(const at::Tensor& h);  // by erf
void gelu_backward_cpu(const at::Tensor& dy, at::Tensor& h);
at::Tensor relu2_cpu(const at::Tensor& h);
void relu2_backward_cpu(const at::Tensor& dy, at::Tensor& h);
at::Tensor swiglu_cpu(const at::Tensor& h);  // [..., 2F] -> [..., F]
void swiglu_backward_cpu(const at::Tensor& dy, at::Tensor& h);
at::Tensor geglu_cpu(const at::Tensor& h);  // [..., 2F] -> [..., F]
void geglu_backward_cpu(const at::Tensor& dy, at::Tensor& h);

}  // namespace lockstep::nn
