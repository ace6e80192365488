#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/optim/functions.h"

namespace lockstep::optim {
namespace {

// Of f(x) = a x + b x^3 + c x^5, which acts on every singular value: steep at zero rather than convergent to 1.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kLeastNorm = 1e-7;  // that is divided by

double rate_factor(at::IntArrayRef shape, config::MuonScale scale) {
  const auto rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
  switch (scale) {
    case config::MuonScale::kOriginal:
      return std::sqrt(std::max(1.0, rows / columns));
    case config::MuonScale::kMatchRmsAdamW:
      return 0.2 * std::sqrt(std::max(rows, columns));
  }
  LOCKSTEP_CHECK(false, "scale ", static_cast<int>(scale));
}

// What the iteration is to begin from; where nesterov is off, the slot.
at::Tensor muon_direction(const Parameter& piece, const Section& options, const StepPoint& point) {
  const at::Tensor& momentum = piece.slots[0];
  const at::Tensor gradient = at::mul(piece.grad, point.grad_scale);
  momentum.lerp_(gradient, 1 - options.momentum);
  return options.nesterov ? gradient.lerp(momentum, options.momentum) : momentum;
}

// Product and sum are rounded by themselves: the bits of an element do not depend on where a piece begins and ends.
void muon_apply(const Parameter& piece, const at::Tensor& orthogonal, at::IntArrayRef shape, const Section& options,
                const StepPoint& point) {
  // Its own peak on the way of the other's.
  const double lr = options.muon_lr ? point.lr * (*options.muon_lr / options.lr) : point.lr;
  if (piece.decay) piece.value.mul_(1 - lr * options.muon_weight_decay.value_or(options.weight_decay));
  piece.value.add_(at::mul(orthogonal.to(at::kFloat), -lr * rate_factor(shape, options.muon_scale)));
  if (piece.copy.defined()) piece.copy.copy_(piece.value);
}

// The matrix U S V^T as U S' V^T with S' from about 0.7 to 1.2, where it has full rank. On the shorter side, where the products of X X^T are smaller.
at::Tensor newton_schulz(const at::Tensor& matrix, const Section& options) {
  const bool tall = matrix.size(0) > matrix.size(1);
  const at::ScalarType type = options.ns_precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat;
  at::Tensor x = matrix.to(type, /*non_blocking=*/false, /*copy=*/true);
  if (tall) x = x.t();
  x.div_(at::linalg_vector_norm(x, 2).clamp_min(kLeastNorm));
  for (int i = 0; i < options.ns_steps; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, /*beta=*/kB, /*alpha=*/kC);
    x = at::addmm(x, polynomial, x, /*beta=*/kA);
  }
  return tall ? x.t() : x;
}

// The momentum after a step, from [value, momentum]. Roundings: of the difference to the scaled gradient, its factor and the sum.
UpdateFormula muon_formula(const Section& options, const StepPoint& point, bool) {
  return [momentum = options.momentum, scale = point.grad_scale](std::span<const double> before, double gradient,
                                                                 std::span<double> after, std::span<double> rounding) {
    const double g = gradient * scale;
    after[0] = before[0];
    rounding[0] = kLeastNormal;
    after[1] = momentum * before[1] + (1 - momentum) * g;
    rounding[1] = kUlp * (6 * (1 - momentum) * (std::abs(g) + std::abs(before[1])) + 2 * std::abs(after[1])) + kLeastNormal;
  };
}

}  // namespace

constinit const Functions kMuon{.id = "muon", .formula = muon_formula, .direction = muon_direction, .orthogonal = newton_schulz,
                                .apply = muon_apply};

}  // namespace lockstep::optim
