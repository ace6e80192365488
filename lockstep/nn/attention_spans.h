// Attention of any rectangle of queries and keys: the queries here beside keys that may be others' (a step of a ring), windows, documents.
// What a rectangle gives is merged into what queries have seen so far, by log-sum-exp (Milakov and Gimelshein, Online normalizer
// calculation, 2018; Liu et al., Ring Attention, 2023), so keys may come block by block in any order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/nn/key_spans.h"

namespace lockstep::nn {

// What queries have seen so far.
struct SeenSums {
  at::Tensor out;        // [B, Sq, H, V] fp32, contiguous: softmax over the keys seen so far times their values; zero where there are none
  at::Tensor logsumexp;  // [B, H, Sq] fp32: of their scores; -infinity where there are none
};
SeenSums nothing_seen(const at::Tensor& q, int64_t value_width);  // q [B, H, Sq, K]

// A rectangle: views with contiguous last dim, fp32 or bf16, the same for all; H is a multiple of KV.
struct AttentionRectangle {
  at::Tensor q;      // [B, H, Sq, K]
  at::Tensor k;      // [B, KV, Skv, K]
  at::Tensor v;      // [B, KV, Skv, V]
  KeySpans spans{};  // [B, Sq]: keys of k that each query sees
  double scale = 0;  // of scores; 0: 1 / sqrt(K)
};
// Throws where shapes or dtypes do not fit each other, or spans are none.
void check_rectangle(const AttentionRectangle& rectangle);

// Adds what the queries see of these keys; a query that sees none of them keeps its sums to the bit. On the CPU blocks of keys that no
// query of a block sees cost nothing. On a GPU all scores are computed, with a bias [B, 1, Sq, Skv] (attention_spans_device.h).
void attend(const AttentionRectangle& rectangle, SeenSums& seen);

// All fp32 and contiguous; added to, in the order of the tokens.
struct AttentionGradients {
  at::Tensor dq;  // [B, Sq, H, K]
  at::Tensor dk;  // [B, Skv, KV, K]
  at::Tensor dv;  // [B, Skv, KV, V]
};
// The part of the gradients that this rectangle makes. dout [B, Sq, H, V] contiguous, in the dtype of q; `seen`: over all keys of the
// queries, with `out` in fp32 or in the dtype of q.
void attend_backward(const at::Tensor& dout, const SeenSums& seen, const AttentionRectangle& rectangle, const AttentionGradients& gradients);

// A key of score `sinks` [H] fp32 and no value, which every query sees (Xiao et al., StreamingLLM, 2023; gpt-oss). Last of all keys.
void attend_sinks(const at::Tensor& sinks, SeenSums& seen);
// Adds the gradient of the sinks to dsinks [H] fp32; `seen` with them.
void attend_sinks_backward(const at::Tensor& dout, const SeenSums& seen, const at::Tensor& sinks, const at::Tensor& dsinks);

}  // namespace lockstep::nn
