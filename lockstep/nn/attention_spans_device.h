// Attention over spans on a GPU by LibTorch's memory-efficient kernel, which knows spans as a bias alone: [B, 1, Sq, Skv] in the dtype of q
// and as many bytes to make it, all scores computed, keys and values repeated for grouped heads. It fits a block of a ring or a few thousand
// tokens; plain causal attention does not come here.
#pragma once

#include "lockstep/nn/attention_cpu.h"
#include "lockstep/nn/attention_spans.h"

namespace lockstep::nn {

// Of these keys alone: out [B, Sq, H, V] in the dtype of q, zero where a query sees none; logsumexp is -infinity there.
AttentionResult attend_alone_device(const AttentionRectangle& rectangle);

// Joins what other keys gave to what was seen before. On any device.
void merge_seen(const AttentionResult& block, const SeenSums& seen);

// Gradients [B, heads, S, width] in the dtype of q; `seen` as attend_backward has it.
struct HeadGradients {
  at::Tensor dq, dk, dv;
};
HeadGradients attend_backward_device(const at::Tensor& dout, const SeenSums& seen, const AttentionRectangle& rectangle);

}  // namespace lockstep::nn
