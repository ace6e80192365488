// Generation where the tokens of a sequence are held in parts: the keys and values of a token stay where it is, a query goes to all holders
// (Yang et al., Context Parallelism for Scalable Million-Token Inference, 2024: pass-Q), and what it sees of each part is merged by
// log-sum-exp. model/decode_context.h has the way; one holder of all tokens needs none of it.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/attention_spans.h"
#include "lockstep/nn/context_attention.h"

namespace lockstep::nn {

// Of one attention layer. Every holder makes the same calls.
class DecodeContext {
 public:
  virtual ~DecodeContext() = default;
  // Attention among the tokens of prompts that are cut.
  virtual ContextAttention& prompts() = 0;
  // What the same queries have seen of the tokens of each holder -> of all tokens: [B, T, H V] fp32, everywhere the same bits.
  virtual at::Tensor merge(const SeenSums& here) = 0;
};

}  // namespace lockstep::nn
