// Rows to the order in which they are sent to experts, and back into sums in the order of tokens. One pass over memory each on the CPU,
// fp32 inside, rounded once; sums of a row have the order of experts. Contiguous fp32 or bf16.
// Of a Routing that is on a device: device_rows.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/routing.h"

namespace lockstep::nn {

// x [T, D] -> [N, D]: row i is x[routing.rows[i]].
at::Tensor permute_rows(const at::Tensor& x, const Routing& routing);

// sent [N, D] -> [T, D]: base[t] + the sum over row t's places i of sent[i], times weights[i] where `weighted`. base [T, D] fp32, or undefined.
at::Tensor sum_rows(const at::Tensor& sent, const Routing& routing, bool weighted, const at::Tensor& base = {});

struct WeightedGradients {
  at::Tensor outputs;  // [N, D]: weights[i] dy[rows[i]]
  at::Tensor weights;  // [N] fp32: dy[rows[i]] . outputs[i]
};
// Of the weighted sum: dy [T, D], outputs [N, D] as they were summed.
WeightedGradients sum_rows_backward(const at::Tensor& dy, const at::Tensor& outputs, const Routing& routing);

}  // namespace lockstep::nn
