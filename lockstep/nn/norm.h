// Normalisation over the last dim: LayerNorm (Ba, Kiros, Hinton 2016) and RMSNorm (Zhang, Sennrich 2019).
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/layer.h"

namespace lockstep::nn {

class Norm {
 public:
  struct Saved {
    at::Tensor x;     // [..., D]: what was normalised
    at::Tensor mean;  // [..., 1] fp32; LayerNorm only
    at::Tensor rstd;  // [..., 1] fp32
    at::Tensor dy;    // [..., D]: from backward_input, for W
  };
  virtual ~Norm() = default;
  at::Tensor forward(const at::Tensor& x, Saved* saved);  // [..., D] -> [..., D]
  // The end of a branch and the norm behind it: `branch` becomes branch + x and is what is normalised.
  at::Tensor forward_sum(const at::Tensor& branch, const at::Tensor& x, Saved* saved);
  // dx, plus `residual` [..., D] where it is defined: the gradient that goes past the norm.
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved, const at::Tensor& residual = {});
  void backward_weight(Saved& saved);  // releases all of saved

 protected:
  Norm(Parameter weight, Parameter bias, double eps);

  // What a device without kernels of our own runs.
  virtual at::Tensor normalize(const at::Tensor& x, Saved& saved) const = 0;
  virtual at::Tensor input_gradient(const at::Tensor& dy, const Saved& saved) const = 0;
  virtual void add_weight_gradient(const Saved& saved) = 0;

  Parameter weight_;
  Parameter bias_;  // undefined: RMSNorm
  double eps_;
};

// y = (x - mean) * rstd * weight + bias
class LayerNorm : public Norm {
 public:
  LayerNorm(Parameter weight, Parameter bias, double eps);

 private:
  at::Tensor normalize(const at::Tensor& x, Saved& saved) const override;
  at::Tensor input_gradient(const at::Tensor& dy, const Saved& saved) const override;
  void add_weight_gradient(const Saved& saved) override;
};

// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps); statistics and products in fp32.
class RmsNorm : public Norm {
 public:
  RmsNorm(Parameter weight, double eps);

 private:
  at::Tensor normalize(const at::Tensor& x, Saved& saved) const override;
  at::Tensor input_gradient(const at::Tensor& dy, const Saved& saved) const override;
  void add_weight_gradient(const Saved& saved) override;
};

}  // namespace lockstep::nn
