// Two linear maps with a nonlinearity in between: [D] -> [F] -> [D].
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/nn/activation.h"
#include "lockstep/nn/linear.h"

namespace lockstep::nn {

class Mlp {
 public:
  struct Saved {
    Linear::Saved up;
    at::Tensor h;  // [B, S, F], gated [B, S, 2F]: before the nonlinearity. Backward overwrites it with its gradient.
    Linear::Saved down;
  };

  // up: [D] -> [F], for a gated activation [D] -> [2F]; down: [F] -> [D].
  Mlp(std::unique_ptr<Linear> up, std::unique_ptr<Activation> activation, std::unique_ptr<Linear> down);

  // [B, S, D] -> [B, S, D]; `rows` as in Linear::forward.
  at::Tensor forward(const at::Tensor& x, Saved* saved, int64_t rows = Linear::kAllRows);
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved);
  Pending start_backward_input(const at::Tensor& dy, Saved& saved);  // see Linear
  void backward_weight(Saved& saved);

  // Full recomputation: what forward(x, &saved, rows) keeps, without running `down`, whose output nobody needs.
  void recompute(const at::Tensor& x, Saved& saved, int64_t rows = Linear::kAllRows);
  // Selective recomputation: forget drops the inputs of both linear maps; restore is given that of `up` again and takes
  // that of `down` from h.
  void forget(Saved& saved);
  void restore(const at::Tensor& x, Saved& saved);

 private:
  at::Tensor activation_backward(const at::Tensor& dy, Saved& saved);

  std::unique_ptr<Linear> up_;
  std::unique_ptr<Activation> activation_;
  std::unique_ptr<Linear> down_;
};

}  // namespace lockstep::nn
