// What this rank's processor can do: the yardstick of MFU.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::train {

// FLOP/s of the fastest of a few square matrix products in `dtype` with this rank's threads; about 0.2 s. Ranks that share
// a machine measure at the same time, so that each gets its share.
double measure_gemm_rate(at::ScalarType dtype, at::Device device);

}  // namespace lockstep::train
