// y = x W^T + b over the last dim of x.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "lockstep/nn/layer.h"

namespace lockstep::nn {

// A tensor whose communication may still be under way: the call waits for it. To be called once.
using Pending = std::function<at::Tensor()>;

// weight [N, K], bias [N] or undefined. A sharded linear overrides the virtual functions.
class Linear {
 public:
  static constexpr int64_t kAllRows = -1;
  struct Saved {
    at::Tensor x;   // [..., K]: from forward, for W
    at::Tensor dy;  // [..., N]: from backward_input, for W
    Pending whole_x{};  // of a sharded linear that keeps its part of x alone: all of it, for W
  };

  explicit Linear(Parameter weight, Parameter bias = {});
  virtual ~Linear() = default;

  // x [..., K] contiguous -> [..., N]. `saved` null: nothing is kept. `rows`: of the whole microbatch, where x may hold
  // a part of them (sequence parallelism).
  at::Tensor forward(const at::Tensor& x, Saved* saved, int64_t rows = kAllRows) {
    return forward_rows(x, rows == kAllRows ? x.numel() / x.size(-1) : rows, saved);
  }
  // dy [..., N] contiguous -> dx [..., K]
  virtual at::Tensor backward_input(const at::Tensor& dy, Saved& saved) { return start_backward_input(dy, saved)(); }
  // The same where backward_weight follows at once: what it needs of other ranks is on its way as well.
  virtual Pending start_backward_input(const at::Tensor& dy, Saved& saved);
  virtual void backward_weight(Saved& saved);  // releases x and dy

 protected:
  virtual at::Tensor forward_rows(const at::Tensor& x, int64_t rows, Saved* saved);

  Parameter weight_;
  Parameter bias_;
};

// x [..., n] contiguous as [m, n]: a view.
at::Tensor flatten_rows(const at::Tensor& x);
// rows [m, n] as a view with the leading dims of `like`, whose rows are m too.
at::Tensor unflatten_rows(const at::Tensor& rows, const at::Tensor& like);

}  // namespace lockstep::nn
