// Softmax cross-entropy over rows of logits, loss and gradient in one go.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::nn {

constexpr int64_t kIgnoredTarget = -100;

// The sum over rows of -log softmax(logits)[target], fp32 0-d; `logits` [m, V] (fp32 or bf16, contiguous) then holds
// its gradient softmax - onehot. A row whose target [m] (int64) is kIgnoredTarget adds nothing and has gradient 0.
// Softmax and sum in fp32; a value that is not finite makes the loss so.
at::Tensor cross_entropy_(at::Tensor logits, const at::Tensor& targets);

}  // namespace lockstep::nn
