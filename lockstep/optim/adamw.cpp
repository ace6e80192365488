#include "lockstep/optim/adamw.h"

#include <ATen/ops/stack.h>

#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/optim/adamw_cpu.h"

namespace lockstep::optim {
namespace {

// On one device; what lies side by side, as the gradients of a layer do, is one: kernels are launched for each.
std::vector<at::Tensor> joined(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& gradient : gradients) {
    const bool follows = !all.empty() && gradient.is_alias_of(all.back()) &&
                         gradient.storage_offset() == all.back().storage_offset() + all.back().numel();
    if (!follows) {
      all.push_back(gradient);
      continue;
    }
    at::Tensor& before = all.back();
    before = before.as_strided({before.numel() + gradient.numel()}, {1}, before.storage_offset());
  }
  return all;
}

}  // namespace

void adamw_step(const std::vector<AdamWParameter>& parameters, const AdamWOptions& options, double lr, int64_t step,
                double grad_scale) {
  if (parameters.empty()) return;
  LOCKSTEP_CHECK(step >= 1, "AdamW counts steps from 1, got ", step);
  if (parameters[0].value.is_cpu()) return adamw_step_cpu(parameters, options, lr, step, grad_scale);
  std::vector<nn::cuda::AdamWTensors> pieces;
  for (const AdamWParameter& p : parameters) pieces.push_back({p.value, p.grad, p.exp_avg, p.exp_avg_sq, p.copy, p.decay});
  nn::cuda::adamw(pieces, {.lr = lr,
                           .beta1 = options.beta1,
                           .beta2 = options.beta2,
                           .eps = options.eps,
                           .weight_decay = options.weight_decay,
                           .step = step,
                           .scale = grad_scale});
}

double gradient_norm(const std::vector<at::Tensor>& gradients) {
  double squares = 0;
  std::vector<at::Tensor> elsewhere, sums;
  for (const at::Tensor& gradient : gradients)
    if (gradient.is_cpu())
      squares += sum_of_squares_cpu(gradient);
    else
      elsewhere.push_back(gradient);
  for (const at::Tensor& gradient : joined(elsewhere)) sums.push_back(nn::cuda::square_sum(gradient));
  if (!sums.empty()) squares += at::stack(sums).sum().item<double>();  // waited for once
  return std::sqrt(squares);
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1.0;
}

}  // namespace lockstep::optim
