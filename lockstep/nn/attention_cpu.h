// Causal attention on the CPU in blocks that stay in cache (the algorithm of Dao, FlashAttention-2, 2023): scores are
// never held beyond a block, backward computes them again. LibTorch's kernel does the same through calls of a BLAS for
// each block and reaches a third of the rate of large products; here the products are of our own (tile.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// fp32 or bf16, computed in fp32. H is a multiple of KV. Views with contiguous last dim.
struct AttentionOperands {
  at::Tensor q;  // [B, H, S, K]
  at::Tensor k;  // [B, KV, S, K]
  at::Tensor v;  // [B, KV, S, V]
  double scale = 0;  // of scores; 0: 1 / sqrt(K)
};

struct AttentionResult {
  at::Tensor out;        // [B, S, H, V] contiguous
  at::Tensor logsumexp;  // [B, H, S] fp32
};

AttentionResult causal_attention_cpu(const AttentionOperands& operands);

// dout [B, S, H, V] contiguous. Writes the gradients of the operands to `grads`, which may be views of the same memory as
// the operands.
void causal_attention_backward_cpu(const at::Tensor& dout, const AttentionResult& result,
                                   const AttentionOperands& operands, const AttentionOperands& grads);

}  // namespace lockstep::nn
