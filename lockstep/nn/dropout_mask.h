// Masks of dropout: what a mask is made of, and how the CPU draws it. cuda_kernels.h draws the same on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "lockstep/base/philox.h"

namespace lockstep::nn {

// Element i of the mask is true (kept) where number first + i of the stream is at least `probability`, in [0, 1).
struct MaskDraw {
  PhiloxStream numbers;
  uint64_t first = 0;
  double probability = 0;
};

// bool, contiguous, on the CPU.
at::Tensor dropout_mask_cpu(const MaskDraw& draw, at::IntArrayRef shape);
// The same of rows [..., D] that do not follow one another: row i begins at number first + D rows[i].
at::Tensor dropout_mask_cpu(const MaskDraw& draw, std::span<const int64_t> rows, at::IntArrayRef shape);

}  // namespace lockstep::nn
