// permute.h for rows whose routing is on a device: all T k assignments by row, what is dropped among them. Sums of a row have the order of
// choice, fp32 inside, rounded once. The host waits for nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/device_routing.h"
#include "lockstep/nn/permute.h"

namespace lockstep::nn {

// x [T, D] -> [T k, D]: each row k times.
at::Tensor repeat_rows(const at::Tensor& x, const DeviceRouting& routing);

// sent [T k, D], zeros where dropped -> [T, D], as sum_rows.
at::Tensor sum_repeated(const at::Tensor& sent, const DeviceRouting& routing, bool weighted, const at::Tensor& base);

// As sum_rows_backward; outputs [T k, D] with zeros where dropped, of whose weights the gradient is zero then.
WeightedGradients sum_repeated_backward(const at::Tensor& dy, const at::Tensor& outputs, const DeviceRouting& routing);

}  // namespace lockstep::nn
