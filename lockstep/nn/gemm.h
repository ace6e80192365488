// The products of linear layers. On the CPU two libraries stand behind LibTorch: MKL, called for fp32 by mm, and oneDNN,
// called for bf16 by mm and reached for fp32 by LibTorch's fused linear; a few rows go to a kernel of our own (gemm_rows.h).
// Which one serves depends on the operands' kind alone, never on a clock: the same program gives the same bits.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// rows [m, k] @ weight_t [k, n] (+ bias [n], may be undefined) -> [m, n]. weight_t is a weight or its transposed view.
at::Tensor multiply(const at::Tensor& rows, const at::Tensor& weight_t, const at::Tensor& bias = {});

}  // namespace lockstep::nn
