// What an optimizer's step sees.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/arch/optimizer.h"

namespace lockstep::optim {

// Views of one parameter (or of a piece of it): fp32 where nothing else is said, same shape.
struct Parameter {
  at::Tensor value;                 // master weight
  at::Tensor grad;                  // read alone
  std::vector<at::Tensor> slots{};  // of the optimizer (arch::OptimizerSpec), in its order and types
  at::Tensor copy{};                // bf16: becomes the rounded value; undefined: there is none
  bool decay = false;
  arch::UpdateRule rule{};  // who updates it: for step() of several
};

struct StepPoint {
  double lr = 0;          // of this step
  int64_t number = 1;     // counts from 1 (bias correction)
  double grad_scale = 1;  // the gradient used is grad * grad_scale
};

// An update in fp64, of one element: from `before` (the value, then the slots) and the gradient as it is stored, the state after
// it and what fp32 arithmetic may be off by in each.
using UpdateFormula =
    std::function<void(std::span<const double> before, double gradient, std::span<double> after, std::span<double> rounding)>;

}  // namespace lockstep::optim
