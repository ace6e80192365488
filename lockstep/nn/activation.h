// The nonlinearity of an MLP, between its two linear maps.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/arch/model_config.h"

namespace lockstep::nn {

class Activation {
 public:
  virtual ~Activation() = default;
  virtual at::Tensor forward(const at::Tensor& h) const = 0;
  // The gradient overwrites h, the kept input of forward, and is returned: nothing else needs h any more.
  virtual at::Tensor backward(const at::Tensor& dy, at::Tensor h) const = 0;
};

// GELU by its tanh form (Hendrycks, Gimpel 2016), as GPT-2 uses it. [..., F] -> [..., F]
class GeluTanh : public Activation {
 public:
  at::Tensor forward(const at::Tensor& h) const override;
  at::Tensor backward(const at::Tensor& dy, at::Tensor h) const override;
};

// GELU by erf. [..., F] -> [..., F]
class Gelu : public Activation {
 public:
  at::Tensor forward(const at::Tensor& h) const override;
  at::Tensor backward(const at::Tensor& dy, at::Tensor h) const override;
};

// max(x, 0)^2 (So et al., Primer, 2021). [..., F] -> [..., F]
class Relu2 : public Activation {
 public:
  at::Tensor forward(const at::Tensor& h) const override;
  at::Tensor backward(const at::Tensor& dy, at::Tensor h) const override;
};

// silu(gate) * up (Shazeer, GLU Variants 2020). h = [gate | up] along the last dim: [..., 2F] -> [..., F]
class SwiGlu : public Activation {
 public:
  at::Tensor forward(const at::Tensor& h) const override;
  at::Tensor backward(const at::Tensor& dy, at::Tensor h) const override;
};

// gelu(gate) * up, GELU by its tanh form (Shazeer 2020), as Gemma uses it; h as that of SwiGlu.
class GeGlu : public Activation {
 public:
  at::Tensor forward(const at::Tensor& h) const override;
  at::Tensor backward(const at::Tensor& dy, at::Tensor h) const override;
};

std::unique_ptr<Activation> new_activation(arch::Activation kind);

}  // namespace lockstep::nn
