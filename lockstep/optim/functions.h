// The optimizers of arch/optimizer.cpp as functions: a step element by element, or one of whole matrices in three
// (optimizer.h).
#pragma once

#include <string_view>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

using Section = config::OptimizerSection;

struct Functions {
  std::string_view id;
  UpdateFormula (*formula)(const Section&, const StepPoint&, bool decay) = nullptr;
  void (*step)(const std::vector<Parameter>&, const Section&, const StepPoint&) = nullptr;
  at::Tensor (*direction)(const Parameter&, const Section&, const StepPoint&) = nullptr;
  at::Tensor (*orthogonal)(const at::Tensor&, const Section&) = nullptr;
  void (*apply)(const Parameter&, const at::Tensor&, at::IntArrayRef shape, const Section&, const StepPoint&) = nullptr;
};

// AdamW with decoupled weight decay (Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019), on views into flat
// fp32 buffers. Slots: exp_avg, exp_avg_sq.
extern const Functions kAdamW;
// Muon (Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024): the momentum of a matrix, with its singular
// values brought near to 1 by a Newton-Schulz iteration. As torch.optim.Muon of PyTorch 2.13. Slot: momentum_buffer, a running mean
// of the gradients. Momentum and value go element by element, so pieces of a matrix may have any shape.
extern const Functions kMuon;
// The bias of a router goes up by bias_rate where an expert had fewer tokens than the mean, and down where it had more: value -=
// bias_rate * sign(gradient), of which the gradient is what the tokens counted are above the mean (Wang et al., Auxiliary-Loss-Free
// Load Balancing Strategy for Mixture-of-Experts, 2024). No slots, no decay.
extern const Functions kBalance;

}  // namespace lockstep::optim
