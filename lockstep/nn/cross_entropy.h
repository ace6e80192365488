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

// The same where each of several ranks has the logits of a part of the vocabulary, [m, V/tp] of the ids from
// `first_token`. In between the ranks exchange what cross_entropy_part_ returns:
// [m, 3] fp32: the row's largest logit, the sum of e^(logit - largest), the target's logit (-infinity: not here).
// `logits` then belong to cross_entropy_whole_, which leaves the gradient of this part in them.
at::Tensor cross_entropy_part_(at::Tensor logits, const at::Tensor& targets, int64_t first_token);
struct VocabParts {
  at::Tensor parts;  // [ranks, m, 3], in the order of the ranks
  int mine = 0;
};
// The whole loss, the same bits on every rank: parts are put together in the order of the ranks.
at::Tensor cross_entropy_whole_(at::Tensor logits, const at::Tensor& targets, int64_t first_token,
                                const VocabParts& parts);

}  // namespace lockstep::nn
