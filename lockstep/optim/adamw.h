// AdamW with decoupled weight decay (Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019), on views
// into flat fp32 buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

// Views of one parameter (or of a piece of it): fp32, same shape.
struct AdamWParameter {
  at::Tensor value;       // master weight
  at::Tensor grad;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor copy{};      // bf16: becomes the rounded value; undefined: there is none
  bool decay = false;
};

// One update of all parameters; `step` counts from 1 (bias correction), `lr` is this step's rate.
// The gradient used is grad * grad_scale; grad itself is read alone.
void adamw_step(const std::vector<AdamWParameter>& parameters, const AdamWOptions& options, double lr, int64_t step,
                double grad_scale);

// The L2 norm over all gradients together; each contiguous. Squares are summed in fp64 in the order given.
double gradient_norm(const std::vector<at::Tensor>& gradients);

// The factor that brings `norm` down to `max_norm`: 1 where it is below or max_norm is 0 (clipping off).
double clip_factor(double norm, double max_norm);

}  // namespace lockstep::optim
