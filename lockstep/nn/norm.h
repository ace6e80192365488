// Normalisation over the last dim: LayerNorm (Ba, Kiros, Hinton 2016) and RMSNorm (Zhang, Sennrich 2019).
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/layer.h"

namespace lockstep::nn {

class Norm {
 public:
  struct Saved {
    at::Tensor x;     // [..., D]
    at::Tensor mean;  // [..., 1]; LayerNorm only
    at::Tensor rstd;  // [..., 1]
    at::Tensor dy;    // [..., D]: from backward_input, for W
  };
  virtual ~Norm() = default;
  virtual at::Tensor forward(const at::Tensor& x, Saved* saved) = 0;  // [..., D] -> [..., D]
  virtual at::Tensor backward_input(const at::Tensor& dy, Saved& saved) = 0;
  virtual void backward_weight(Saved& saved) = 0;  // releases all of saved
};

// y = (x - mean) * rstd * weight + bias
class LayerNorm : public Norm {
 public:
  LayerNorm(Parameter weight, Parameter bias, double eps);
  at::Tensor forward(const at::Tensor& x, Saved* saved) override;
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved) override;
  void backward_weight(Saved& saved) override;

 private:
  Parameter weight_;
  Parameter bias_;
  double eps_;
};

// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps); statistics and products in fp32.
class RmsNorm : public Norm {
 public:
  RmsNorm(Parameter weight, double eps);
  at::Tensor forward(const at::Tensor& x, Saved* saved) override;
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved) override;
  void backward_weight(Saved& saved) override;

 private:
  Parameter weight_;
  double eps_;
};

}  // namespace lockstep::nn
