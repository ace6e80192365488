// Copies between tensors of one shape: any dtypes, strides and devices, at the memory's rate also where one is the
// transpose of the other.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::checkpoint {

// `to` and `from` have the same shape; values are converted as LibTorch converts them.
void copy_values(const at::Tensor& to, const at::Tensor& from);

}  // namespace lockstep::checkpoint
