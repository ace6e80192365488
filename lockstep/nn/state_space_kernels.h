// The scan of a state space and its convolution by the kernels of nn/cuda, in the shapes of state_space_core.h. Chosen at link time: with the
// preset cuda they are there, else LibTorch's operators do all of it (state_space_device.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/state_space_core.h"

namespace lockstep::nn::cuda {

// Whether there are kernels for it: for states of up to 256 numbers, and convolutions over up to 8 tokens. Where not, none of the others is called.
bool scans(const Scan& scan);
bool convolves(const Convolution& of);

at::Tensor scan_forward(const Scan& scan, ScanStates* states);
void add_first_states(const Scan& scan, const at::Tensor& first, ScanStates& states, const at::Tensor& y);
at::Tensor scan_backward_first(const Scan& scan, const at::Tensor& dy);
void scan_backward(const Scan& scan, const ScanStates& states, const at::Tensor& dy, const at::Tensor& dlast, const ScanGradients& gradients);

at::Tensor convolve(const Convolution& of);
void convolve_backward_input(const Convolution& of, const at::Tensor& dy, const ConvolutionGradients& gradients);
void convolve_backward_weight(const Convolution& of, const at::Tensor& dy, const at::Tensor& dweight, const at::Tensor& dbias);

}  // namespace lockstep::nn::cuda
