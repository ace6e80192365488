// Attention of generation: queries of one or more sequences against a cache of keys and values. On the CPU by a kernel of
// our own that reads every key and value once for all query heads that share it, where they lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lockstep/nn/kv_cache.h"

namespace lockstep::nn {

// softmax(q k^T scale) v for q [B, T, H, K], sequence b at spans[b]: token t sees keys 0 .. start + t of its slot, which are all in the
// cache, or with a window the last ones of them. -> [B, T, H K] contiguous. On the CPU fp32 or bf16, computed in fp32; what a query gets
// is a function of its own sequence alone, to the bit.
// Sinks count once: where the tokens of a sequence lie with several holders, with that of its first token.
// With a context it is collective: the same q everywhere sees the tokens of all holders, and everywhere the same bits come of it.
using DecodeOptions = ContextAttention::Options;
at::Tensor attention_decode(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans, const DecodeOptions& options = {});
// Of the tokens that are here alone.
SeenSums attention_decode_here(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans,
                               const DecodeOptions& options = {});

}  // namespace lockstep::nn
