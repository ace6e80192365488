#include <ATen/ops/mul.h>
#include <ATen/ops/sign.h>

#include <cmath>

#include "lockstep/optim/functions.h"

namespace lockstep::optim {
namespace {

// A step of one size, whatever the gradient's: neither the rate of the schedule nor the scale of the gradient counts.
void balance_step(const std::vector<Parameter>& parameters, const Section& options, const StepPoint&) {
  for (const Parameter& parameter : parameters) {
    parameter.value.sub_(at::mul(at::sign(parameter.grad), options.bias_rate));
    if (parameter.copy.defined()) parameter.copy.copy_(parameter.value);
  }
}

// Roundings: of the rate and of the difference.
UpdateFormula balance_formula(const Section& options, const StepPoint&, bool) {
  return [rate = options.bias_rate](std::span<const double> before, double gradient, std::span<double> after,
                                    std::span<double> rounding) {
    const double sign = gradient > 0 ? 1 : gradient < 0 ? -1 : 0;
    after[0] = before[0] - rate * sign;
    rounding[0] = 2 * kUlp * (std::abs(after[0]) + rate) + kLeastNormal;
  };
}

}  // namespace

constinit const Functions kBalance{.id = "balance", .formula = balance_formula, .step = balance_step};

}  // namespace lockstep::optim
