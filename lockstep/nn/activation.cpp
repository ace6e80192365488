#include "lockstep/nn/activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "lockstep/nn/activation_cpu.h"

namespace lockstep::nn {

at::Tensor GeluTanh::forward(const at::Tensor& h) const {
  return h.is_cpu() ? gelu_tanh_cpu(h) : at::gelu(h, "tanh");
}

at::Tensor GeluTanh::backward(const at::Tensor& dy, at::Tensor h) const {
  if (!h.is_cpu()) return at::gelu_backward_out(h, dy, h, "tanh");
  gelu_tanh_backward_cpu(dy, h);
  return h;
}

at::Tensor SwiGlu::forward(const at::Tensor& h) const {
  if (h.is_cpu()) return swiglu_cpu(h);
  const int64_t size = h.size(-1) / 2;
  return at::silu(h.narrow(-1, 0, size)).mul_(h.narrow(-1, size, size));
}

at::Tensor SwiGlu::backward(const at::Tensor& dy, at::Tensor h) const {
  if (h.is_cpu()) {
    swiglu_backward_cpu(dy, h);
    return h;
  }
  const int64_t size = h.size(-1) / 2;
  at::Tensor gate = h.narrow(-1, 0, size);
  at::Tensor up = h.narrow(-1, size, size);
  const at::Tensor dy_up = at::mul(dy, up);
  at::silu_out(up, gate);  // up is read for the last time above
  up.mul_(dy);
  at::silu_backward_out(gate, dy_up, gate);
  return h;
}

}  // namespace lockstep::nn
