#include "lockstep/nn/latent_decode.h"

#include <ATen/Parallel.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>

#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

// One head of one token.
template <typename T, typename X = T>
struct Head {
  const X* from;
  const T* weight;  // [inputs or outputs, width]
  X* to;
  int64_t rows, width;
};

// to[c] = sum over n of from[n] weight[n, c]
template <typename T>
LOCKSTEP_INLINE void sum_rows(const Head<T>& h) {
  for (int64_t first = 0; first < h.width; first += kLanes) {
    Floats sum{};
    for (int64_t n = 0; n < h.rows; ++n) {
      Floats row{};
      vec::load(h.weight + n * h.width + first, h.width - first, row);
      sum += static_cast<float>(h.from[n]) * row;
    }
    vec::store(h.to + first, h.width - first, sum);
  }
}

// to[v] = sum over c of from[c] weight[v, c]
template <typename T, typename X>
LOCKSTEP_INLINE void dot_rows(const Head<T, X>& h) {
  for (int64_t v = 0; v < h.rows; ++v) {
    Floats sum{};
    for (int64_t first = 0; first < h.width; first += kLanes) {
      Floats row{}, x{};
      vec::load(h.weight + v * h.width + first, h.width - first, row);
      vec::load(h.from + first, h.width - first, x);
      sum += row * x;
    }
    h.to[v] = static_cast<X>(vec::sum(sum));
  }
}

LOCKSTEP_CLONES void sum_of(const Head<float>& head) { sum_rows(head); }
LOCKSTEP_CLONES void sum_of(const Head<c10::BFloat16>& head) { sum_rows(head); }
LOCKSTEP_CLONES void dots_of(const Head<float>& head) { dot_rows(head); }
LOCKSTEP_CLONES void dots_of(const Head<c10::BFloat16>& head) { dot_rows(head); }
LOCKSTEP_CLONES void dots_of(const Head<c10::BFloat16, float>& head) { dot_rows(head); }

// from, to [M, H, any], rows of a head contiguous; weight [H, any, C], of which a head takes `rows` rows from `first` on.
template <typename T, typename X, typename Kernel>
void of_heads(const at::Tensor& from, const at::Tensor& weight, int64_t first, int64_t rows, const at::Tensor& to, const Kernel& kernel) {
  const int64_t heads = weight.size(0), width = weight.size(2);
  at::parallel_for(0, from.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / heads, head = i % heads;
      kernel(Head<T, X>{.from = from.const_data_ptr<X>() + row * from.stride(0) + head * from.stride(1),
                        .weight = weight.const_data_ptr<T>() + head * weight.stride(0) + first * width,
                        .to = to.data_ptr<X>() + row * to.stride(0) + head * to.stride(1),
                        .rows = rows,
                        .width = width});
    }
  });
}

template <typename T>
void latent_decode_cpu(const at::Tensor& q, const at::Tensor& weight, const KvCacheLayer& cache, std::span<const CacheSpan> spans,
                       const LatentScores& scores, const at::Tensor& out) {
  const arch::LatentSizes& s = scores.sizes;
  const int64_t batch = q.size(0), length = q.size(1), heads = q.size(2), width = s.kv_rank + s.rope;
  const at::Tensor absorbed = at::empty({batch, length, heads, width}, q.options());
  absorbed.narrow(3, s.kv_rank, s.rope).copy_(q.narrow(3, s.nope, s.rope));
  of_heads<T, T>(q.view({batch * length, heads, -1}), weight, 0, s.nope, absorbed.view({batch * length, heads, -1}),
                 [](const Head<T>& head) { sum_of(head); });
  // From a sum of latents [M, H, C + R], its weights in another dtype or not, to that of values.
  const auto values_of = [&]<typename X>(const at::Tensor& latents, const at::Tensor& values, X) {
    of_heads<T, X>(latents.view({batch * length, heads, width}), weight, s.nope, s.value, values.view({batch * length, heads, -1}),
                   [](const Head<T, X>& head) { dots_of(head); });
  };
  if (!cache.context) return values_of(attention_decode(absorbed, cache, spans, {.scale = scores.scale}), out, T());
  // What travels is values, which are shorter than latents.
  const SeenSums here = attention_decode_here(absorbed, cache, spans, {.scale = scores.scale});
  const at::Tensor values = at::empty({batch, length, heads, s.value}, here.out.options());
  values_of(here.out, values, float());
  out.copy_(cache.context->merge({.out = values, .logsumexp = here.logsumexp}));
}

// x [M, H, n] times a matrix of each head, [H, n, m] -> [M, H, m]
at::Tensor times(const at::Tensor& x, const at::Tensor& by_head) { return at::bmm(x.transpose(0, 1), by_head).transpose(0, 1); }

// By LibTorch's operators, one token at a time.
at::Tensor latent_decode_by_token(const at::Tensor& q, const at::Tensor& weight, const KvCacheLayer& cache,
                                  std::span<const CacheSpan> spans, const LatentScores& scores) {
  const arch::LatentSizes& s = scores.sizes;
  const int64_t length = q.size(1);
  const at::Tensor flat = q.flatten(0, 1);
  const at::Tensor absorbed = at::cat({times(flat.narrow(2, 0, s.nope), weight.narrow(1, 0, s.nope)), flat.narrow(2, s.nope, s.rope)}, 2);
  const auto values_of = [&](const at::Tensor& latents) {  // [M, H, C]
    return times(latents, weight.narrow(1, s.nope, s.value).transpose(1, 2)).reshape({q.size(0), length, -1});
  };
  if (cache.context) {  // merged before they are rounded
    SeenSums here = attention_decode_here(absorbed.view({q.size(0), length, q.size(2), -1}), cache, spans, {.scale = scores.scale});
    here.out = here.out.narrow(3, 0, s.kv_rank).contiguous();
    return values_of(cache.context->merge(here).view({flat.size(0), q.size(2), s.kv_rank}).to(q.scalar_type()));
  }
  std::vector<at::Tensor> sums;  // [H, C]
  for (int64_t i = 0; i < absorbed.size(0); ++i) {
    const CacheSpan& span = spans[static_cast<size_t>(i / length)];
    const at::Tensor seen = cache.k[span.slot][0].narrow(0, 0, span.start + i % length + 1);  // [L, C + R]
    const at::Tensor weights = at::matmul(absorbed[i], seen.t()).to(at::kFloat).mul_(scores.scale).softmax(-1).to(q.scalar_type());
    sums.push_back(at::matmul(weights, seen.narrow(1, 0, s.kv_rank)));
  }
  return values_of(at::stack(sums));
}

}  // namespace

at::Tensor latent_decode(const at::Tensor& q, const at::Tensor& kv_weight, const KvCacheLayer& cache, std::span<const CacheSpan> spans,
                         const LatentScores& scores) {
  const arch::LatentSizes& s = scores.sizes;
  const int64_t heads = q.size(2);
  LOCKSTEP_CHECK(cache.k.size(1) == 1 && cache.k.size(3) == s.kv_rank + s.rope, "a cache of keys and values, not of latents");
  const at::Tensor weight = kv_weight.view({heads, s.nope + s.value, s.kv_rank});
  if (!q.is_cpu()) return latent_decode_by_token(q, weight, cache, spans, scores);
  LOCKSTEP_CHECK(q.is_contiguous() && weight.is_contiguous());
  const at::Tensor out = at::empty({q.size(0), q.size(1), heads * s.value}, q.options());
  if (q.scalar_type() == at::kFloat)
    latent_decode_cpu<float>(q, weight, cache, spans, scores, out);
  else
    latent_decode_cpu<c10::BFloat16>(q, weight, cache, spans, scores, out);
  return out;
}

}  // namespace lockstep::nn
