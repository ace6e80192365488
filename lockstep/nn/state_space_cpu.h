// The scan of a state space and its convolution on the CPU, by kernels of our own: a block of 64 tokens is packed to fp32 once, C B^T is
// made once for up to 8 heads of a group, and all else of the block happens in cache. Threads share out sequences, pieces and heads; no
// sum depends on their number. Functions and shapes are those of state_space_core.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/state_space_core.h"

namespace lockstep::nn {

at::Tensor scan_forward_cpu(const Scan& scan, ScanStates* states);
void add_first_states_cpu(const Scan& scan, const at::Tensor& first, ScanStates& states, const at::Tensor& y);
at::Tensor scan_backward_first_cpu(const Scan& scan, const at::Tensor& dy);
void scan_backward_cpu(const Scan& scan, const ScanStates& states, const at::Tensor& dy, const at::Tensor& dlast, const ScanGradients& gradients);
at::Tensor scan_step_cpu(const Scan& scan, const at::Tensor& state);

at::Tensor convolve_cpu(const Convolution& of);
void convolve_backward_input_cpu(const Convolution& of, const at::Tensor& dy, const ConvolutionGradients& gradients);
void convolve_backward_weight_cpu(const Convolution& of, const at::Tensor& dy, const at::Tensor& dweight, const at::Tensor& dbias);

}  // namespace lockstep::nn
