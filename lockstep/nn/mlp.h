// Two linear maps with a nonlinearity in between: [D] -> [F] -> [D].
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/nn/activation.h"
#include "lockstep/nn/branch.h"

namespace lockstep::nn {

class Mlp : public Branch {
 public:
  struct Saved : Branch::Saved {
    Linear::Saved up;
    at::Tensor h;  // [B, S, F], gated [B, S, 2F]: before the nonlinearity. Backward overwrites it with its gradient.
    Linear::Saved down;
  };

  // up: [D] -> [F], for a gated activation [D] -> [2F]; down: [F] -> [D].
  Mlp(std::unique_ptr<Linear> up, std::unique_ptr<Activation> activation, std::unique_ptr<Linear> down);

  std::unique_ptr<Branch::Saved> new_saved() const override { return std::make_unique<Saved>(); }
  using Branch::forward;
  at::Tensor forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) override;
  at::Tensor backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  Pending start_backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  void backward_weight(Branch::Saved& saved) override;

  // The passes in halves, one linear map each, for a caller with other work between them: each half takes what the one before has given,
  // and the two are forward, backward_input or start_backward_input, with the same bits.
  at::Tensor forward_up(const at::Tensor& x, Branch::Saved* saved);        // -> inner [B, S, F]
  at::Tensor forward_down(const at::Tensor& inner, Branch::Saved* saved);  // -> y
  at::Tensor backward_down(const at::Tensor& dy, Branch::Saved& saved);    // -> dh, as h
  at::Tensor backward_up(const at::Tensor& dh, Branch::Saved& saved);      // -> dx
  Pending start_backward_up(const at::Tensor& dh, Branch::Saved& saved);

  void recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) override;
  // The inputs of both linear maps are dropped; that of `down` comes of h.
  void forget(Branch::Saved& saved) override;
  void restore(const at::Tensor& x, Branch::Saved& saved) override;

 private:
  std::unique_ptr<Linear> up_;
  std::unique_ptr<Activation> activation_;
  std::unique_ptr<Linear> down_;
};

}  // namespace lockstep::nn
