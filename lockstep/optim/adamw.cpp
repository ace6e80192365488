#include <ATen/Parallel.h>

#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/vector_math.h"
#include "lockstep/optim/functions.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::optim {
namespace {

using nn::vec::Floats;
using nn::vec::kLanes;
namespace vec = nn::vec;

constexpr int64_t kPiece = 1 << 14;

struct Coefficients {
  float keep_value;        // 1 - lr * weight_decay
  float gradient;          // grad_scale
  float first, second;     // 1 - beta1, 1 - beta2
  float keep_second;       // beta2
  float rate;              // lr / (1 - beta1^step)
  float root;              // 1 / sqrt(1 - beta2^step)
  float eps;
};

struct Piece {
  float* value;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  c10::BFloat16* copy;  // null: none
};

// To about 1 ulp. The first guess is that of the exponent halved; each of Newton's steps doubles the digits.
LOCKSTEP_INLINE Floats square_root(const Floats& x) {
  const vec::Ints bits = 0x5f3759df - (reinterpret_cast<vec::Ints>(x) >> 1);
  Floats inverse = reinterpret_cast<Floats>(bits);
  const Floats half = x * 0.5f;
  inverse *= 1.5f - half * inverse * inverse;
  inverse *= 1.5f - half * inverse * inverse;  // to 5e-6; the step below squares that
  const Floats root = x * inverse;
  const Floats exact = root + 0.5f * inverse * (x - root * root);
  // Below the least normal number the guess is none, and so is it for infinity.
  Floats result = x >= 1.2e-38f ? exact : Floats{};
  result = x <= 3.4e38f ? result : x;
  return result;
}

// Elements [i, i + count), at most one vector.
LOCKSTEP_INLINE void update_at(const Piece& p, int64_t i, int64_t count, const Coefficients& c) {
  Floats value{}, grad{}, m{}, v{};
  vec::load(p.value + i, count, value);
  vec::load(p.grad + i, count, grad);
  vec::load(p.exp_avg + i, count, m);
  vec::load(p.exp_avg_sq + i, count, v);
  grad *= c.gradient;
  m += (grad - m) * c.first;
  v = v * c.keep_second + grad * grad * c.second;
  value = value * c.keep_value - c.rate * m / (square_root(v) * c.root + c.eps);
  vec::store(p.exp_avg + i, count, m);
  vec::store(p.exp_avg_sq + i, count, v);
  vec::store(p.value + i, count, value);
  if (p.copy) vec::store(p.copy + i, count, value);
}

// Elements [begin, end). Copies of its own, which no store through a float pointer can change: they stay in registers. Whole
// vectors first: of a length that is not a constant a copy is a call, and what it touches lies in memory.
LOCKSTEP_CLONES void update(const Piece& piece, int64_t begin, int64_t end, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  const Piece p = piece;
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) update_at(p, i, kLanes, c);
  if (i < end) update_at(p, i, end - i, c);
}

Piece piece_of(const Parameter& p) {
  const auto pointer = [](const at::Tensor& tensor) {
    LOCKSTEP_CHECK(tensor.is_contiguous() && tensor.scalar_type() == at::kFloat, "AdamW on ", tensor.dtype());
    return tensor.data_ptr<float>();
  };
  return {.value = pointer(p.value),
          .grad = pointer(p.grad),
          .exp_avg = pointer(p.slots[0]),
          .exp_avg_sq = pointer(p.slots[1]),
          .copy = p.copy.defined() ? p.copy.data_ptr<c10::BFloat16>() : nullptr};
}

void step_on_host(const std::vector<Parameter>& parameters, const Section& options, const StepPoint& point) {
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(point.number));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(point.number));
  for (const Parameter& parameter : parameters) {
    const double decay = parameter.decay ? point.lr * options.weight_decay : 0.0;
    const Coefficients c{.keep_value = static_cast<float>(1 - decay),
                         .gradient = static_cast<float>(point.grad_scale),
                         .first = static_cast<float>(1 - options.beta1),
                         .second = static_cast<float>(1 - options.beta2),
                         .keep_second = static_cast<float>(options.beta2),
                         .rate = static_cast<float>(point.lr / correction1),
                         .root = static_cast<float>(1 / std::sqrt(correction2)),
                         .eps = static_cast<float>(options.eps)};
    const Piece piece = piece_of(parameter);
    at::parallel_for(0, parameter.value.numel(), kPiece, [&](int64_t begin, int64_t end) { update(piece, begin, end, c); });
  }
}

void adamw_step(const std::vector<Parameter>& parameters, const Section& options, const StepPoint& point) {
  LOCKSTEP_CHECK(point.number >= 1, "AdamW counts steps from 1, got ", point.number);
  if (parameters[0].value.is_cpu()) return step_on_host(parameters, options, point);
  std::vector<nn::cuda::AdamWTensors> pieces;
  for (const Parameter& p : parameters) pieces.push_back({p.value, p.grad, p.slots[0], p.slots[1], p.copy, p.decay});
  nn::cuda::adamw(pieces, {.lr = point.lr,
                           .beta1 = options.beta1,
                           .beta2 = options.beta2,
                           .eps = options.eps,
                           .weight_decay = options.weight_decay,
                           .step = point.number,
                           .scale = point.grad_scale});
}

// Algorithm 2 of the paper. What fp32 arithmetic may be off by: each operation by 2^-24 of its result.
// First moment: the scaled gradient is off by 2 roundings (factor, product), the difference to the old moment, its factor and
// the product by 3 more, the sum by 1. Second: all terms are positive, at most 8 in a row. Value: the factor of the decay and
// its product 2, the sum 1; the step by at most 16 in a row, by what the first moment is off, and by a second moment that is
// flushed to zero: sqrt(2^-126) is then missing below the line.
UpdateFormula adamw_formula(const Section& options, const StepPoint& point, bool decay) {
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
    const double flushed = std::sqrt(kLeastNormal / correction2) / below;
    rounding[1] = kUlp * (6 * (1 - beta1) * (std::abs(g) + std::abs(before[1])) + 2 * std::abs(m)) + kLeastNormal;
    rounding[2] = kUlp * 8 * v + kLeastNormal;
    rounding[0] = kUlp * (2 * std::abs(value) + std::abs(after[0])) + kLeastNormal +
                  ((16 * kUlp + flushed) * std::abs(step) + rate * rounding[1] / below);
  };
}

}  // namespace

constinit const Functions kAdamW{.id = "adamw", .formula = adamw_formula, .step = adamw_step};

}  // namespace lockstep::optim
