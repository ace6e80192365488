// y = x W^T + b over the last dim of x.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "lockstep/nn/layer.h"

namespace lockstep::nn {

// A tensor that may still be on its way: the call waits for it. To be called once.
using Pending = std::function<at::Tensor()>;

// weight [N, K], bias [N] or undefined.
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
  // dy [..., N] contiguous -> dx [..., K]
  virtual at::Tensor backward_input(const at::Tensor& dy, Saved& saved) { return start_backward_input(dy, saved)(); }
  // The same where backward_weight follows at once: what it has to wait for may be on its way as well.
  virtual Pending start_backward_input(const at::Tensor& dy, Saved& saved);
  virtual void backward_weight(Saved& saved);  // releases x and dy

 protected:
  Parameter weight_;
  Parameter bias_;
};

// x [..., n] contiguous as [m, n]: a view.
at::Tensor flatten_rows(const at::Tensor& x);
// rows [m, n] as a view with the leading dims of `like`, whose rows are m too.
at::Tensor unflatten_rows(const at::Tensor& rows, const at::Tensor& like);

}  // namespace lockstep::nn
