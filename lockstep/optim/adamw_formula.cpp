#include <cmath>

#include "lockstep/optim/adamw.h"

namespace lockstep::optim {
namespace {

constexpr double kUlp = 0x1p-24;
constexpr double kLeast = 0x1p-126;  // below it a processor may flush to zero

}  // namespace

// First moment: the scaled gradient is off by 2 roundings (factor, product), the difference to the old moment, its factor and
// the product by 3 more, the sum by 1. Second: all terms are positive, at most 8 in a row. Value: the factor of the decay and
// its product 2, the sum 1; the step by at most 16 in a row, by what the first moment is off, and by a second moment that is
// flushed to zero: sqrt(2^-126) is then missing below the line.
UpdateFormula adamw_formula(const AdamWOptions& options, const StepPoint& point, bool decay) {
  const double beta1 = options.beta1, beta2 = options.beta2, eps = options.eps;
  const double lr = point.lr, scale = point.grad_scale, weight_decay = decay ? options.weight_decay : 0;
  const auto t = static_cast<double>(point.number);
  const double correction1 = 1 - std::pow(beta1, t), correction2 = 1 - std::pow(beta2, t);
  return [=](std::span<const double> before, double gradient, std::span<double> after, std::span<double> rounding) {
    const double g = gradient * scale, value = before[0];
    const double m = beta1 * before[1] + (1 - beta1) * g, v = beta2 * before[2] + (1 - beta2) * g * g;
    const double rate = lr / correction1, below = std::sqrt(v / correction2) + eps, step = rate * m / below;
    after[0] = value - lr * weight_decay * value - step;
    after[1] = m;
    after[2] = v;
    const double flushed = std::sqrt(kLeast / correction2) / below;
    rounding[1] = kUlp * (6 * (1 - beta1) * (std::abs(g) + std::abs(before[1])) + 2 * std::abs(m)) + kLeast;
    rounding[2] = kUlp * 8 * v + kLeast;
    rounding[0] = kUlp * (2 * std::abs(value) + std::abs(after[0])) + kLeast +
                  ((16 * kUlp + flushed) * std::abs(step) + rate * rounding[1] / below);
  };
}

}  // namespace lockstep::optim
