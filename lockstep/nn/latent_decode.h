// Latent attention of generation with weights absorbed (DeepSeek-AI 2024, DeepSeek-V2, section 2.1.2): a score q . W_k c is (W_k^T q) . c, and a
// sum of values W_v c is W_v times the sum of latents. So a query looks at the C + R numbers of each token, once for all heads, and
// no key or value is ever made.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lockstep/arch/model_config.h"
#include "lockstep/nn/attention_decode.h"

namespace lockstep::nn {

struct LatentScores {
  arch::LatentSizes sizes{};
  double scale = 0;
};

// q [B, T, H, N + R], rotated, sequence b at spans[b]: token t sees the latents 0 .. start + t of its slot, [C] and behind them the rotated
// key [R], which are all in the cache. kv_weight [H (N + V), C]: of a head first the rows of k. -> [B, T, H V] contiguous. On the CPU what
// a query gets is a function of its own sequence alone, to the bit. With a context of the cache collective, as attention_decode.
at::Tensor latent_decode(const at::Tensor& q, const at::Tensor& kv_weight, const KvCacheLayer& cache, std::span<const CacheSpan> spans,
                         const LatentScores& scores);

}  // namespace lockstep::nn
