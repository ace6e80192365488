// Messages of slots, M rows for each of E experts, filled and read on the device that knows who has which slot.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/nn/device_routing.h"

namespace lockstep::parallel {

// rows [T k, D] of all assignments -> the message [E M, D]: each kept one in its slot, zeros in the others.
at::Tensor into_slots(const at::Tensor& rows, const nn::DeviceRouting& routing);

// The inverse: message [E M, D] -> [T k, D], zeros where dropped.
at::Tensor out_of_slots(const at::Tensor& message, const nn::DeviceRouting& routing);

// rows [outer inner M, D] -> [inner outer M, D]: messages by source, then local expert, in the order by expert, then source; and back.
at::Tensor swap_blocks(const at::Tensor& rows, int64_t outer, int64_t inner);

}  // namespace lockstep::parallel
