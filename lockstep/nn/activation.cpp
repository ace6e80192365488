#include "lockstep/nn/activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>

#include "lockstep/base/error.h"
#include "lockstep/nn/activation_cpu.h"
#include "lockstep/nn/cuda_kernels.h"

namespace lockstep::nn {
namespace {

struct Halves {
  at::Tensor gate, up;  // views of h
};
Halves halves_of(const at::Tensor& h) {
  const int64_t size = h.size(-1) / 2;
  return {.gate = h.narrow(-1, 0, size), .up = h.narrow(-1, size, size)};
}

// On a device in fp32 and rounded once, as on the host.
at::Tensor geglu_of_operators(const at::Tensor& h) {
  const auto [gate, up] = halves_of(h);
  return at::gelu(gate.to(at::kFloat), "tanh").mul_(up).to(h.scalar_type());
}

void geglu_backward_of_operators(const at::Tensor& dy, const at::Tensor& h) {
  const auto [gate, up] = halves_of(h);
  const at::Tensor d = dy.to(at::kFloat), x = gate.to(at::kFloat), of_gate = at::gelu_backward(d.mul(up), x, "tanh");
  up.copy_(at::gelu(x, "tanh").mul_(d));
  gate.copy_(of_gate);
}

}  // namespace

at::Tensor GeluTanh::forward(const at::Tensor& h) const {
  return h.is_cpu() ? gelu_tanh_cpu(h) : at::gelu(h, "tanh");
}

at::Tensor GeluTanh::backward(const at::Tensor& dy, at::Tensor h) const {
  h.is_cpu() ? gelu_tanh_backward_cpu(dy, h) : cuda::gelu_tanh_backward(dy, h);
  return h;
}

at::Tensor Gelu::forward(const at::Tensor& h) const { return h.is_cpu() ? gelu_cpu(h) : at::gelu(h, "none"); }

at::Tensor Gelu::backward(const at::Tensor& dy, at::Tensor h) const {
  if (h.is_cpu())
    gelu_backward_cpu(dy, h);
  else
    h.copy_(at::gelu_backward(dy, h, "none"));
  return h;
}

at::Tensor Relu2::forward(const at::Tensor& h) const { return h.is_cpu() ? relu2_cpu(h) : at::relu(h).square_(); }

at::Tensor Relu2::backward(const at::Tensor& dy, at::Tensor h) const {
  if (h.is_cpu())
    relu2_backward_cpu(dy, h);
  else
    h.relu_().mul_(2).mul_(dy);
  return h;
}

at::Tensor SwiGlu::forward(const at::Tensor& h) const { return h.is_cpu() ? swiglu_cpu(h) : cuda::swiglu(h); }

at::Tensor SwiGlu::backward(const at::Tensor& dy, at::Tensor h) const {
  h.is_cpu() ? swiglu_backward_cpu(dy, h) : cuda::swiglu_backward(dy, h);
  return h;
}

at::Tensor GeGlu::forward(const at::Tensor& h) const { return h.is_cpu() ? geglu_cpu(h) : geglu_of_operators(h); }

at::Tensor GeGlu::backward(const at::Tensor& dy, at::Tensor h) const {
  h.is_cpu() ? geglu_backward_cpu(dy, h) : geglu_backward_of_operators(dy, h);
  return h;
}

std::unique_ptr<Activation> new_activation(arch::Activation kind) {
  switch (kind) {
    case arch::Activation::kGeluTanh:
      return std::make_unique<GeluTanh>();
    case arch::Activation::kGelu:
      return std::make_unique<Gelu>();
    case arch::Activation::kRelu2:
      return std::make_unique<Relu2>();
    case arch::Activation::kSwiGlu:
      return std::make_unique<SwiGlu>();
    case arch::Activation::kGeGlu:
      return std::make_unique<GeGlu>();
  }
  throw InternalError("no such activation");
}

}  // namespace lockstep::nn
