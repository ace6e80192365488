#include "lockstep/nn/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/norm_cpu.h"

namespace lockstep::nn {
namespace {

// On a device with 1 + weight, which in bf16 has no value of its own: in fp32 and rounded once.
cuda::NormResult norm_plus_one(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight, double eps) {
  const at::Tensor sum = branch.defined() ? x + branch : x, wide = sum.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true).add_(eps));
  return {.y = at::mul(wide, rstd).mul_(weight.to(at::kFloat) + 1).to(x.scalar_type()), .sum = sum, .mean = {}, .rstd = rstd};
}

at::Tensor norm_plus_one_backward(const at::Tensor& dy, const Norm::Saved& saved, const at::Tensor& weight, const at::Tensor& residual) {
  const at::Tensor g = dy.to(at::kFloat) * (weight.to(at::kFloat) + 1), h = saved.x.to(at::kFloat) * saved.rstd;
  const at::Tensor dx = (g - h * at::mul(g, h).mean(-1, /*keepdim=*/true)).mul_(saved.rstd);
  return (residual.defined() ? dx.add_(residual) : dx).to(dy.scalar_type());
}

}  // namespace

Norm::Norm(Parameter weight, Parameter bias, double eps, bool plus_one)
    : weight_(std::move(weight)), bias_(std::move(bias)), eps_(eps), plus_one_(plus_one) {
  LOCKSTEP_CHECK(!plus_one_ || !bias_.value.defined(), "1 + weight beside a bias");
}

at::Tensor Norm::forward(const at::Tensor& x, Saved* saved) {
  at::Tensor none;
  return forward_sum(none, x, saved);
}

at::Tensor Norm::forward_sum(at::Tensor& branch, const at::Tensor& x, Saved* saved) {
  Saved kept;
  at::Tensor y;
  if (x.is_cpu()) {
    NormStatistics statistics;
    y = norm_cpu(x, branch, {.weight = weight_.value, .bias = bias_.value, .eps = eps_, .plus_one = plus_one_}, statistics);
    kept = {.x = branch.defined() ? branch : x, .mean = statistics.mean, .rstd = statistics.rstd, .dy = {}};
  } else {
    cuda::NormResult result =
        plus_one_ ? norm_plus_one(x, branch, weight_.value, eps_) : cuda::norm(x, branch, weight_.value, bias_.value, eps_);
    y = std::move(result.y);
    if (branch.defined()) branch = result.sum;
    kept = {.x = result.sum, .mean = result.mean, .rstd = result.rstd, .dy = {}};
  }
  if (saved) *saved = std::move(kept);
  return y;
}

at::Tensor Norm::backward_input(const at::Tensor& dy, Saved& saved, const at::Tensor& residual) {
  saved.dy = dy;
  if (!dy.is_cpu() && plus_one_) return norm_plus_one_backward(dy, saved, weight_.value, residual);
  if (!dy.is_cpu())
    return cuda::norm_backward(dy, {.x = saved.x, .mean = saved.mean, .rstd = saved.rstd}, weight_.value, residual);
  return norm_backward_cpu(dy, saved.x, residual, {.weight = weight_.value, .bias = bias_.value, .eps = eps_, .plus_one = plus_one_},
                           {.mean = saved.mean, .rstd = saved.rstd});
}

void Norm::backward_weight(Saved& saved) {
  if (saved.dy.is_cpu())
    norm_backward_weight_cpu(saved.dy, saved.x, {.mean = saved.mean, .rstd = saved.rstd},
                             {.weight = weight_.grad, .bias = bias_.grad, .eps = eps_});
  else
    cuda::norm_weight_backward(saved.dy, {.x = saved.x, .mean = saved.mean, .rstd = saved.rstd}, weight_.grad,
                               bias_.grad);
  saved = {};
}

}  // namespace lockstep::nn
