// The passes of a gated norm by LibTorch's operators, on any device; functions and shapes are those of gated_norm_cpu.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/gated_norm_cpu.h"

namespace lockstep::nn {

at::Tensor gated_squares_device(const GatedRows& rows);
at::Tensor gated_outputs_device(const GatedRows& rows, const at::Tensor& rstd);
at::Tensor gated_along_device(const GatedRows& rows, const at::Tensor& dout);
at::Tensor gated_backward_device(const GatedRows& rows, const at::Tensor& rstd, const at::Tensor& shares, const at::Tensor& dout, const at::Tensor& dz);
void gated_backward_weight_device(const GatedRows& rows, const at::Tensor& rstd, const at::Tensor& dout, const at::Tensor& dweight);

}  // namespace lockstep::nn
