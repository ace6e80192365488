// The nonlinearity of experts whose sizes have a clamp (gpt-oss: OpenAI 2025): a SwiGLU (Shazeer 2020) of bounded operands whose sigmoid is
// steeper and whose linear half is shifted by one.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/activation.h"

namespace lockstep::nn {

// h = [gate | up] along the last dim, contiguous fp32 or bf16, [..., 2F] -> [..., F]:
//   g = min(gate, limit), u = min(max(up, -limit), limit), y = (u + 1) g sigmoid(1.702 g)
// fp32 inside, rounded once. Beyond a bound the gradient of gate or up is zero, at the bound it is not. On the CPU one pass over memory;
// elsewhere LibTorch's operators, over as many rows at a time as take 16 MiB each.
class ClampedGlu : public Activation {
 public:
  // InternalError unless limit > 0.
  explicit ClampedGlu(double limit);
  at::Tensor forward(const at::Tensor& h) const override;
  at::Tensor backward(const at::Tensor& dy, at::Tensor h) const override;

 private:
  float limit_;
};

}  // namespace lockstep::nn
