#include "lockstep/optim/adamw.h"

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/optim/adamw_cpu.h"

namespace lockstep::optim {

void adamw_step(const std::vector<Parameter>& parameters, const AdamWOptions& options, const StepPoint& point) {
  if (parameters.empty()) return;
  LOCKSTEP_CHECK(point.number >= 1, "AdamW counts steps from 1, got ", point.number);
  if (parameters[0].value.is_cpu()) return adamw_step_cpu(parameters, options, point);
  std::vector<nn::cuda::AdamWTensors> pieces;
  for (const Parameter& p : parameters) pieces.push_back({p.value, p.grad, p.slots[0], p.slots[1], p.copy, p.decay});
  nn::cuda::adamw(pieces, {.lr = point.lr,
                           .beta1 = options.beta1,
                           .beta2 = options.beta2,
                           .eps = options.eps,
                           .weight_decay = options.weight_decay,
                           .step = point.number,
                           .scale = point.grad_scale});
}

}  // namespace lockstep::optim
