// AdamW with decoupled weight decay (Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019), on views
// into flat fp32 buffers.
#pragma once

#include "lockstep/optim/parameter.h"

namespace lockstep::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

// One update of all parameters. Slots: exp_avg, exp_avg_sq.
void adamw_step(const std::vector<Parameter>& parameters, const AdamWOptions& options, const StepPoint& point);

// Algorithm 2 of the paper. What fp32 arithmetic may be off by: each operation by 2^-24 of its result.
UpdateFormula adamw_formula(const AdamWOptions& options, const StepPoint& point, bool decay);

}  // namespace lockstep::optim
