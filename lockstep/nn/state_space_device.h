// The scan of a state space and its convolution by LibTorch's operators, in chunks as products: on any device, with several passes over
// memory and masks of [chunk, chunk] for every head. Functions and shapes are those of state_space_core.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/state_space_core.h"

namespace lockstep::nn {

at::Tensor scan_forward_device(const Scan& scan, ScanStates* states);
void add_first_states_device(const Scan& scan, const at::Tensor& first, ScanStates& states, const at::Tensor& y);
at::Tensor scan_backward_first_device(const Scan& scan, const at::Tensor& dy);
void scan_backward_device(const Scan& scan, const ScanStates& states, const at::Tensor& dy, const at::Tensor& dlast, const ScanGradients& gradients);
at::Tensor scan_step_device(const Scan& scan, const at::Tensor& state);

at::Tensor convolve_device(const Convolution& of);
void convolve_backward_input_device(const Convolution& of, const at::Tensor& dy, const ConvolutionGradients& gradients);
void convolve_backward_weight_device(const Convolution& of, const at::Tensor& dy, const at::Tensor& dweight, const at::Tensor& dbias);

}  // namespace lockstep::nn
