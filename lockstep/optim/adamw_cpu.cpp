#include "lockstep/optim/adamw_cpu.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

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

// One parameter, or a piece of it.
struct Piece {
  float* value;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  c10::BFloat16* copy;  // null: none
  int64_t size;
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

// Whole vectors first: of a length that is not a constant a copy is a call, and what it touches lies in memory.
LOCKSTEP_INLINE void update(const Piece& p, const Coefficients& c) {
  int64_t i = 0;
  for (; i + kLanes <= p.size; i += kLanes) update_at(p, i, kLanes, c);
  if (i < p.size) update_at(p, i, p.size - i, c);
}

// Copies of its own, which no store through a float pointer can change: they stay in registers.
LOCKSTEP_CLONES void update_of(const Piece& piece, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  const Piece own = piece;
  update(own, c);
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
          .copy = p.copy.defined() ? p.copy.data_ptr<c10::BFloat16>() : nullptr,
          .size = p.value.numel()};
}

Piece part_of(const Piece& p, int64_t begin, int64_t end) {
  return {p.value + begin,      p.grad + begin, p.exp_avg + begin,
          p.exp_avg_sq + begin, p.copy ? p.copy + begin : nullptr, end - begin};
}

}  // namespace

void adamw_step_cpu(const std::vector<Parameter>& parameters, const AdamWOptions& options, const StepPoint& point) {
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
    at::parallel_for(0, piece.size, kPiece,
                     [&](int64_t begin, int64_t end) { update_of(part_of(piece, begin, end), c); });
  }
}

}  // namespace lockstep::optim
