#include "lockstep/nn/activation.h"

#include <ATen/ops/gelu.h>

#include "lockstep/nn/activation_cpu.h"
#include "lockstep/nn/cuda_kernels.h"

namespace lockstep::nn {

at::Tensor GeluTanh::forward(const at::Tensor& h) const {
  return h.is_cpu() ? gelu_tanh_cpu(h) : at::gelu(h, "tanh");
}

at::Tensor GeluTanh::backward(const at::Tensor& dy, at::Tensor h) const {
  h.is_cpu() ? gelu_tanh_backward_cpu(dy, h) : cuda::gelu_tanh_backward(dy, h);
  return h;
}

at::Tensor SwiGlu::forward(const at::Tensor& h) const { return h.is_cpu() ? swiglu_cpu(h) : cuda::swiglu(h); }

at::Tensor SwiGlu::backward(const at::Tensor& dy, at::Tensor h) const {
  h.is_cpu() ? swiglu_backward_cpu(dy, h) : cuda::swiglu_backward(dy, h);
  return h;
}

}  // namespace lockstep::nn
