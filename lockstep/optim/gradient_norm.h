// The norm over all gradients, and clipping by it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::optim {

// The L2 norm over all gradients together; each contiguous fp32. Squares are summed in fp64 in the order given. On the CPU a
// gradient is cut into pieces by the number of elements alone: the same bits with any number of threads.
double gradient_norm(const std::vector<at::Tensor>& gradients);

// The factor that brings `norm` down to `max_norm`: 1 where it is below or max_norm is 0 (clipping off).
double clip_factor(double norm, double max_norm);

}  // namespace lockstep::optim
