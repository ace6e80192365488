#include "lockstep/optim/adamw.h"

#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/optim/adamw_cpu.h"

namespace lockstep::optim {
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
  at::Tensor elsewhere;  // waited for once
  for (const at::Tensor& gradient : gradients) {
    if (gradient.is_cpu()) {
      squares += sum_of_squares_cpu(gradient);
    } else {
      const at::Tensor sum = nn::cuda::square_sum(gradient);
      elsewhere = elsewhere.defined() ? elsewhere.add_(sum) : sum;
    }
  }
  if (elsewhere.defined()) squares += elsewhere.item<double>();
  return std::sqrt(squares);
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1.0;
}

}  // namespace lockstep::optim
