// Attention of generation: queries of one or more sequences against a cache of keys and values. On the CPU by a kernel of
// our own that reads every key and value once for all query heads that share it, where they lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace lockstep::nn {

// Keys and values of one attention layer: `slots` sequences, each with room for `capacity` tokens. Latent attention keeps latents
// and rotated keys, [slots, 1, capacity, C + R], and k and v are one tensor.
struct KvCacheLayer {
  at::Tensor k;  // [slots, KV, capacity, K]
  at::Tensor v;  // [slots, KV, capacity, K]
};

// Tokens start .. start + T - 1 of the sequence in `slot`; those before them are in the cache.
struct CacheSpan {
  int64_t slot = 0;
  int64_t start = 0;
};

// Writes k and v [B, T, KV, K], sequence b at spans[b], to the cache.
void append_to_cache(const at::Tensor& k, const at::Tensor& v, const KvCacheLayer& cache, std::span<const CacheSpan> spans);

// softmax(q k^T scale) v, scale 1 / sqrt(K) where it is 0, for q [B, T, H, K], sequence b at spans[b]: token t sees keys 0 .. start + t of its slot, which
// are all in the cache. -> [B, T, H K] contiguous. On the CPU fp32 or bf16, computed in fp32; what a query gets is a
// function of its own sequence alone, to the bit.
at::Tensor attention_decode(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans, double scale = 0);

}  // namespace lockstep::nn
