// Softmax cross-entropy where each of several ranks has the logits of a part of the vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/nn/cross_entropy.h"

namespace lockstep::parallel {

// nn::cross_entropy_ of logits [m, V/tp], of the ids from `first_token`. In between the ranks exchange what
// cross_entropy_part_ returns:
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

}  // namespace lockstep::parallel
