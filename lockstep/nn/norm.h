// Normalisation over the last dim: LayerNorm (Ba, Kiros, Hinton 2016) and RMSNorm (Zhang, Sennrich 2019).
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "lockstep/nn/layer.h"

namespace lockstep::nn {

// y = (x - mean) * rstd * weight + bias; without a bias y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps), or with plus_one
// y = x * rstd * (1 + weight).
// Statistics and products in fp32.
class Norm {
 public:
  struct Saved {
    at::Tensor x;     // [..., D]: what was normalised
    at::Tensor mean;  // [..., 1] fp32; LayerNorm only
    at::Tensor rstd;  // [..., 1] fp32
    at::Tensor dy;    // [..., D]: from backward_input, for W
  };

  // weight, bias [D]; bias undefined: RMSNorm. plus_one: of RMSNorm alone.
  Norm(Parameter weight, Parameter bias, double eps, bool plus_one = false);

  at::Tensor forward(const at::Tensor& x, Saved* saved);  // [..., D] contiguous -> [..., D]
  // The end of a branch and the norm behind it: `branch` becomes branch + x and is what is normalised.
  at::Tensor forward_sum(at::Tensor& branch, const at::Tensor& x, Saved* saved);
  // dx, plus `residual` [..., D] where it is defined: the gradient that goes past the norm.
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved, const at::Tensor& residual = {});
  void backward_weight(Saved& saved);  // releases all of saved

 private:
  Parameter weight_;
  Parameter bias_;
  double eps_;
  bool plus_one_;
};

struct LayerNorm : Norm {
  using Norm::Norm;
};

struct RmsNorm : Norm {
  RmsNorm(Parameter weight, double eps, bool plus_one = false) : Norm(std::move(weight), {}, eps, plus_one) {}
};

}  // namespace lockstep::nn
