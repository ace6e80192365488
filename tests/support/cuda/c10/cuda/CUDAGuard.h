// LibTorch's guard of any device.
#pragma once

#include <c10/core/DeviceGuard.h>

namespace c10::cuda {

using CUDAGuard = DeviceGuard;

}  // namespace c10::cuda
