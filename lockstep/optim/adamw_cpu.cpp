#include "lockstep/optim/adamw_cpu.h"

#include <ATen/Parallel.h>

#include <algorithm>
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

// Sixteen running sums in fp32 over at most kPiece elements, added up in fp64.
LOCKSTEP_CLONES double squares_of(const float* values, int64_t size) {
  Floats sums[4] = {};
  for (int64_t i = 0; i < size; i += 4 * kLanes) {
    for (int64_t j = 0; j < 4; ++j) {
      const int64_t at = i + j * kLanes;
      if (at >= size) break;
      Floats x{};
      vec::load(values + at, size - at, x);
      sums[j] += x * x;
    }
  }
  double total = 0;
  for (const Floats& sum : sums)
    for (int64_t lane = 0; lane < kLanes; ++lane) total += static_cast<double>(sum[lane]);
  return total;
}

Piece piece_of(const AdamWParameter& p) {
  const auto pointer = [](const at::Tensor& tensor) {
    LOCKSTEP_CHECK(tensor.is_contiguous() && tensor.scalar_type() == at::kFloat, "AdamW on ", tensor.dtype());
    return tensor.data_ptr<float>();
  };
  return {.value = pointer(p.value),
          .grad = pointer(p.grad),
          .exp_avg = pointer(p.exp_avg),
          .exp_avg_sq = pointer(p.exp_avg_sq),
          .copy = p.copy.defined() ? p.copy.data_ptr<c10::BFloat16>() : nullptr,
          .size = p.value.numel()};
}

Piece part_of(const Piece& p, int64_t begin, int64_t end) {
  return {p.value + begin,      p.grad + begin, p.exp_avg + begin,
          p.exp_avg_sq + begin, p.copy ? p.copy + begin : nullptr, end - begin};
}

}  // namespace

void adamw_step_cpu(const std::vector<AdamWParameter>& parameters, const AdamWOptions& options, double lr, int64_t step,
                    double grad_scale) {
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step));
  for (const AdamWParameter& parameter : parameters) {
    const double decay = parameter.decay ? lr * options.weight_decay : 0.0;
    const Coefficients c{.keep_value = static_cast<float>(1 - decay),
                         .gradient = static_cast<float>(grad_scale),
                         .first = static_cast<float>(1 - options.beta1),
                         .second = static_cast<float>(1 - options.beta2),
                         .keep_second = static_cast<float>(options.beta2),
                         .rate = static_cast<float>(lr / correction1),
                         .root = static_cast<float>(1 / std::sqrt(correction2)),
                         .eps = static_cast<float>(options.eps)};
    const Piece piece = piece_of(parameter);
    at::parallel_for(0, piece.size, kPiece,
                     [&](int64_t begin, int64_t end) { update_of(part_of(piece, begin, end), c); });
  }
}

double sum_of_squares_cpu(const at::Tensor& values) {
  LOCKSTEP_CHECK(values.is_contiguous() && values.scalar_type() == at::kFloat, "squares of ", values.dtype());
  const float* data = values.const_data_ptr<float>();
  const int64_t size = values.numel();
  std::vector<double> sums(static_cast<size_t>((size + kPiece - 1) / kPiece));
  at::parallel_for(0, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      sums[static_cast<size_t>(i)] = squares_of(data + i * kPiece, std::min(kPiece, size - i * kPiece));
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace lockstep::optim
