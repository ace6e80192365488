#include "lockstep/nn/norm.h"

#include <utility>

#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/norm_cpu.h"

namespace lockstep::nn {

Norm::Norm(Parameter weight, Parameter bias, double eps)
    : weight_(std::move(weight)), bias_(std::move(bias)), eps_(eps) {}

at::Tensor Norm::forward(const at::Tensor& x, Saved* saved) {
  at::Tensor none;
  return forward_sum(none, x, saved);
}

at::Tensor Norm::forward_sum(at::Tensor& branch, const at::Tensor& x, Saved* saved) {
  Saved kept;
  at::Tensor y;
  if (x.is_cpu()) {
    NormStatistics statistics;
    y = norm_cpu(x, branch, {.weight = weight_.value, .bias = bias_.value, .eps = eps_}, statistics);
    kept = {.x = branch.defined() ? branch : x, .mean = statistics.mean, .rstd = statistics.rstd, .dy = {}};
  } else {
    cuda::NormResult result = cuda::norm(x, branch, weight_.value, bias_.value, eps_);
    y = std::move(result.y);
    if (branch.defined()) branch = result.sum;
    kept = {.x = result.sum, .mean = result.mean, .rstd = result.rstd, .dy = {}};
  }
  if (saved) *saved = std::move(kept);
  return y;
}

at::Tensor Norm::backward_input(const at::Tensor& dy, Saved& saved, const at::Tensor& residual) {
  saved.dy = dy;
  if (!dy.is_cpu())
    return cuda::norm_backward(dy, {.x = saved.x, .mean = saved.mean, .rstd = saved.rstd}, weight_.value, residual);
  return norm_backward_cpu(dy, saved.x, residual, {.weight = weight_.value, .bias = bias_.value, .eps = eps_},
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
