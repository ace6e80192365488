// Attention over spans on the CPU, in the blocks of attention_cpu.h. Keys and values are packed once for the query heads that share them
// and lie with one thread; blocks of keys that no query of a block sees are neither packed nor multiplied; a comparison of places is made
// at the borders of spans alone.
#pragma once

#include "lockstep/nn/attention_cpu.h"
#include "lockstep/nn/attention_spans.h"

namespace lockstep::nn {

// Of these keys alone: the output in the dtype of q, zero where a query sees none; logsumexp is -infinity there.
AttentionResult attend_alone_cpu(const AttentionRectangle& rectangle);
// attend and attend_backward of attention_spans.h.
void attend_cpu(const AttentionRectangle& rectangle, const SeenSums& seen);
void attend_backward_cpu(const at::Tensor& dout, const SeenSums& seen, const AttentionRectangle& rectangle, const AttentionGradients& gradients);

// Of what attend_alone_cpu made: writes to `grads`, [B, heads, S, width] in the dtype of q, which may be views of the memory of q, k, v.
void attend_alone_backward_cpu(const at::Tensor& dout, const AttentionResult& result, const AttentionRectangle& rectangle,
                               const AttentionOperands& grads);

}  // namespace lockstep::nn
