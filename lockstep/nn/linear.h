// y = x W^T + b over the last dim of x.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/layer.h"

namespace lockstep::nn {

// weight [N, K], bias [N] or undefined. A sharded linear overrides the three functions and keeps the same Saved.
class Linear {
 public:
  struct Saved {
    at::Tensor x;   // [..., K]: from forward, for W
    at::Tensor dy;  // [..., N]: from backward_input, for W
  };

  explicit Linear(Parameter weight, Parameter bias = {});
  virtual ~Linear() = default;

  // x [..., K] contiguous -> [..., N]. `saved` null: nothing is kept.
  virtual at::Tensor forward(const at::Tensor& x, Saved* saved);
  virtual at::Tensor backward_input(const at::Tensor& dy, Saved& saved);  // dy [..., N] contiguous -> dx [..., K]
  virtual void backward_weight(Saved& saved);                             // releases x and dy

 protected:
  Parameter weight_;
  Parameter bias_;
};

// x [..., n] contiguous as [m, n]: a view.
at::Tensor flatten_rows(const at::Tensor& x);

}  // namespace lockstep::nn
