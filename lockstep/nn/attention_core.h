// softmax(q k^T / sqrt(K)) v without materialising the scores (Dao et al., FlashAttention, 2022 and 2023), by our own
// kernel or LibTorch's; which one serves which device and dtype is decided in attention_core.cpp alone, and of spans by device there and in
// attention_spans.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/key_spans.h"

namespace lockstep::nn {

// Query head h reads key/value head h / (H / KV): KV divides H (grouped-query attention, Ainslie et al. 2023).
struct AttentionCoreSaved {
  at::Tensor q;          // [B, H, S, K]; q, k, v may be strided views. With spans S of k and v is Skv
  at::Tensor k;          // [B, KV, S, K]
  at::Tensor v;          // [B, KV, S, V]; V = K but in latent attention
  at::Tensor out;        // [B, H, S, V], a view of the returned tensor
  at::Tensor logsumexp;  // [B, H, S] fp32
  at::Tensor rng_state;  // CUDA kernels ask for theirs back, though nothing is dropped
  at::Tensor rng_unused;
  double scale = 0;      // as given
  KeySpans spans{};      // what each query sees; undefined: causal
  at::Tensor sinks{};    // as given; `out` and `logsumexp` are with them
};

// [B, S, heads, K] each. May be views of the memory of q, k and v.
struct AttentionCoreGrads {
  at::Tensor dq, dk, dv;
  at::Tensor dsinks{};  // [H] fp32, added to; where there are sinks
};

// q [B, H, Sq, K], k [B, KV, Skv, K], v [B, KV, Skv, V] -> [B, Sq, H * V] contiguous. Causal attention requires Sq = Skv, and what is
// not causal V = K. `scale`: of scores; 0: 1 / sqrt(K). `sinks` [H], in fp32 or the dtype of q: a further score of every query, which has no
// value (attention_sinks.h); undefined: none.
at::Tensor attention_core_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                                  AttentionCoreSaved* saved, double scale = 0, const at::Tensor& sinks = {});
// The same where each query sees an interval of the keys: documents, windows, any Sq and Skv. A query that sees none gets zeros.
at::Tensor attention_core_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const KeySpans& spans,
                                  AttentionCoreSaved* saved, double scale = 0, const at::Tensor& sinks = {});

// Backward of the causal form and of that with spans: dout [B, Sq, H * V] contiguous; writes to `grads`. Releases everything in `saved`.
void attention_core_backward(const at::Tensor& dout, AttentionCoreSaved& saved, const AttentionCoreGrads& grads);

}  // namespace lockstep::nn
