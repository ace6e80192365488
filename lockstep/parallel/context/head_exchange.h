// Heads for tokens: from all heads of the tokens here to all tokens of some heads, and back (Jacobs et al., DeepSpeed Ulysses, 2023).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/nn/context_attention.h"
#include "lockstep/parallel/context/group.h"
#include "lockstep/parallel/context/head_parts.h"
#include "lockstep/parallel/context/shared_tokens.h"

namespace lockstep::parallel {

// Of one pass of one layer over n ranks. M = B T rows here; heads of a rank as HeadParts has them, qh and kvh with empty ones. A row of a
// rank's heads is q | k | v, qh K + kvh (K + V) elements.
class HeadExchange {
 public:
  struct Sizes {
    int64_t heads = 0, kv_heads = 0, key = 0, value = 0;  // H, KV, K, V
  };
  HeadExchange(ContextGroup& group, ContextGroup::Over over, const program::CallId& calls, const Sizes& sizes, const SharedTokens& tokens);

  const HeadParts& parts() const { return parts_; }
  int rank() const { return group_.over(over_).rank(); }

  // Rows [B, n T, qh K + kvh (K + V)] of the heads here, in the order of the sequences, as heads: views.
  nn::ContextAttention::Heads split(const at::Tensor& rows) const;
  int64_t row_width() const { return parts_.heads_each() * sizes_.key + parts_.kv_heads_each() * (sizes_.key + sizes_.value); }

  // heads [B, T, all heads, ...] -> rows of the heads here
  at::Tensor to_heads(const nn::ContextAttention::Heads& heads, program::CallPhase phase) const;
  // Gradients of these rows -> to those of the heads of the tokens here, where a key head that several ranks had gets the sum of theirs,
  // in the order of ranks.
  void gradients_to_tokens(const at::Tensor& rows, program::CallPhase phase, const nn::AttentionCoreGrads& grads) const;
  // Outputs, or their gradients: [B, T, H V] -> [B, n T, qh, V], and back; both contiguous.
  at::Tensor outputs_to_heads(const at::Tensor& outputs, program::CallPhase phase) const;
  at::Tensor outputs_to_tokens(const at::Tensor& outputs, program::CallPhase phase) const;

 private:
  // parts [n, B, T, width]: of this rank's tokens to all heads, or of all tokens to these heads.
  at::Tensor exchange(const at::Tensor& parts, program::CallPhase phase) const { return group_.exchange(parts, calls_.with(phase), over_)(); }
  at::Tensor room(const at::Tensor& like, int64_t width) const;  // zero where parts have empty heads
  at::Tensor in_order(const at::Tensor& parts) const;    // -> [B, n T, width]
  at::Tensor by_member(const at::Tensor& rows) const;    // the inverse

  ContextGroup& group_;
  const ContextGroup::Over over_;
  const program::CallId calls_;
  const Sizes sizes_;
  const HeadParts parts_;
  const int64_t batch_, tokens_;
  const at::Tensor rows_;  // SharedTokens::rows, on the host
};

}  // namespace lockstep::parallel
