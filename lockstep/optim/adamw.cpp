#include "lockstep/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/optim/adamw_cpu.h"

namespace lockstep::optim {
namespace {

// The operand lists of ATen's fused kernel.
struct TensorLists {
  std::vector<at::Tensor> values, grads, exp_avgs, exp_avg_sqs, steps;
};

void update(const TensorLists& lists, const AdamWOptions& options, double weight_decay, double lr, double grad_scale) {
  if (lists.values.empty()) return;
  // The kernel divides by its scale and writes the quotient back into the gradient.
  const at::Tensor scale = at::full({}, 1.0 / grad_scale, lists.values[0].options());
  at::_fused_adamw_(lists.values, lists.grads, lists.exp_avgs, lists.exp_avg_sqs, {}, lists.steps, lr, options.beta1,
                    options.beta2, weight_decay, options.eps, /*amsgrad=*/false, /*maximize=*/false, scale);
}

}  // namespace

void adamw_step(const std::vector<AdamWParameter>& parameters, const AdamWOptions& options, double lr, int64_t step,
                double grad_scale) {
  if (parameters.empty()) return;
  LOCKSTEP_CHECK(step >= 1, "AdamW counts steps from 1, got ", step);
  if (parameters[0].value.is_cpu()) return adamw_step_cpu(parameters, options, lr, step, grad_scale);
  const at::Tensor step_tensor = at::full({}, static_cast<double>(step), parameters[0].value.options());
  TensorLists decayed, plain;
  for (const AdamWParameter& parameter : parameters) {
    TensorLists& lists = parameter.decay ? decayed : plain;
    lists.values.push_back(parameter.value);
    lists.grads.push_back(parameter.grad);
    lists.exp_avgs.push_back(parameter.exp_avg);
    lists.exp_avg_sqs.push_back(parameter.exp_avg_sq);
    lists.steps.push_back(step_tensor);
  }
  update(decayed, options, options.weight_decay, lr, grad_scale);
  update(plain, options, 0, lr, grad_scale);
  for (const AdamWParameter& parameter : parameters)
    if (parameter.copy.defined()) parameter.copy.copy_(parameter.value);
}

double gradient_norm(const std::vector<at::Tensor>& gradients) {
  double squares = 0;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.is_cpu()) {
      squares += sum_of_squares_cpu(gradient);
    } else {
      const double norm = at::linalg_vector_norm(gradient, 2, std::nullopt, /*keepdim=*/false, at::kDouble).item<double>();
      squares += norm * norm;
    }
  }
  return std::sqrt(squares);
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1.0;
}

}  // namespace lockstep::optim
