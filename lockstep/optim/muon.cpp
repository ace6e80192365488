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

double rate_factor(const at::Tensor& matrix, MuonScale scale) {
  const auto rows = static_cast<double>(matrix.size(0)), columns = static_cast<double>(matrix.size(1));
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
  const at::Tensor& momentum = parameter.slots[0];
  const at::Tensor gradient = at::mul(parameter.grad, point.grad_scale);
  momentum.lerp_(gradient, 1 - options.momentum);
  const at::Tensor direction = options.nesterov ? gradient.lerp(momentum, options.momentum) : momentum;
  const at::Tensor orthogonal = newton_schulz(direction, options);
  if (parameter.decay) parameter.value.mul_(1 - point.lr * options.weight_decay);
  parameter.value.add_(orthogonal, -point.lr * rate_factor(parameter.value, options.scale));
  if (parameter.copy.defined()) parameter.copy.copy_(parameter.value);
}

}  // namespace

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

void muon_step(const std::vector<Parameter>& parameters, const MuonOptions& options, const StepPoint& point) {
  for (const Parameter& parameter : parameters) update(parameter, options, point);
}

}  // namespace lockstep::optim
