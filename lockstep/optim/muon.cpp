#include "lockstep/optim/muon.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/check.h"

namespace lockstep::optim {
namespace {

// Of f(x) = a x + b x^3 + c x^5, which acts on every singular value: steep at zero rather than convergent to 1.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

double rate_factor(double rows, double columns, MuonScale scale) {
  switch (scale) {
    case MuonScale::kOriginal:
      return std::sqrt(std::max(1.0, rows / columns));
    case MuonScale::kMatchRmsAdamW:
      return 0.2 * std::sqrt(std::max(rows, columns));
  }
  LOCKSTEP_CHECK(false, "scale ", static_cast<int>(scale));
}

void update(const Parameter& parameter, const MuonOptions& options, const StepPoint& point) {
  LOCKSTEP_CHECK_EQ(parameter.value.dim(), 2, "Muon updates matrices");
  const at::Tensor orthogonal = newton_schulz(muon_direction(parameter, options, point), options);
  muon_apply(parameter, orthogonal, parameter.value.size(0), parameter.value.size(1), options, point);
}

}  // namespace

at::Tensor muon_direction(const Parameter& piece, const MuonOptions& options, const StepPoint& point) {
  const at::Tensor& momentum = piece.slots[0];
  const at::Tensor gradient = at::mul(piece.grad, point.grad_scale);
  momentum.lerp_(gradient, 1 - options.momentum);
  return options.nesterov ? gradient.lerp(momentum, options.momentum) : momentum;
}

// Product and sum are rounded by themselves: the bits of an element do not depend on where a piece begins and ends.
void muon_apply(const Parameter& piece, const at::Tensor& orthogonal, int64_t rows, int64_t columns, const MuonOptions& options,
                const StepPoint& point) {
  const double factor = rate_factor(static_cast<double>(rows), static_cast<double>(columns), options.scale);
  if (piece.decay) piece.value.mul_(1 - point.lr * options.weight_decay);
  piece.value.add_(at::mul(orthogonal.to(at::kFloat), -point.lr * factor));
  if (piece.copy.defined()) piece.copy.copy_(piece.value);
}

// On the shorter side, where the products of X X^T are smaller.
at::Tensor newton_schulz(const at::Tensor& matrix, const MuonOptions& options) {
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(options.iterate_in, /*non_blocking=*/false, /*copy=*/true);
  if (tall) x = x.t();
  x.div_(at::linalg_vector_norm(x, 2).clamp_min(options.eps));
  for (int i = 0; i < options.iterations; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, /*beta=*/kB, /*alpha=*/kC);
    x = at::addmm(x, polynomial, x, /*beta=*/kA);
  }
  return tall ? x.t() : x;
}

// Of the difference to the scaled gradient, its factor and the sum.
UpdateFormula muon_formula(const MuonOptions& options, const StepPoint& point) {
  constexpr double kUlp = 0x1p-24, kLeast = 0x1p-126;
  return [momentum = options.momentum, scale = point.grad_scale](std::span<const double> before, double gradient,
                                                                 std::span<double> after, std::span<double> rounding) {
    const double g = gradient * scale;
    after[0] = before[0];
    rounding[0] = kLeast;
    after[1] = momentum * before[1] + (1 - momentum) * g;
    rounding[1] = kUlp * (6 * (1 - momentum) * (std::abs(g) + std::abs(before[1])) + 2 * std::abs(after[1])) + kLeast;
  };
}

void muon_step(const std::vector<Parameter>& parameters, const MuonOptions& options, const StepPoint& point) {
  for (const Parameter& parameter : parameters) update(parameter, options, point);
}

}  // namespace lockstep::optim
