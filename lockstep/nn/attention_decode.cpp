#include "lockstep/nn/attention_decode.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/attention_core.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

// The query heads of one token that share a key/value head.
template <typename T, typename Out = T>
struct Group {
  const T* q;     // [heads, size]
  const T* k;     // [length, size]
  const T* v;     // [length, size]
  Out* out;       // [heads, size]
  float* scores;  // [heads, length]: workspace
  int64_t heads, length, size;
  float scale;
  float* logsumexp = nullptr;  // of scores, [heads] at distances of `stride`; null: not wanted
  int64_t stride = 0;
  const float* sinks = nullptr;  // [heads]; null: none
};

template <typename T>
LOCKSTEP_INLINE float dot(const T* a, const T* b, int64_t size) {
  Floats sum{};
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats x{}, y{};
    vec::load(a + i, size - i, x);
    vec::load(b + i, size - i, y);
    sum += x * y;
  }
  return vec::sum(sum);
}

struct Weights {
  float largest, total;
};

// Turns scores into weights e^(score - largest); returns the largest and the sum of the weights.
LOCKSTEP_INLINE Weights softmax_weights(float* scores, int64_t length) {
  float most = scores[0];
  for (int64_t t = 1; t < length; ++t) most = scores[t] > most ? scores[t] : most;
  Floats total{};
  for (int64_t t = 0; t < length; t += kLanes) {
    Floats x = vec::splat(most - 1e4f);  // lanes beyond the end: they weigh e^-87
    vec::load(scores + t, length - t, x);
    Floats weight = vec::exp(x - most);
    for (int64_t lane = length - t; lane < kLanes; ++lane) weight[lane] = 0;
    total += weight;
    vec::store(scores + t, length - t, weight);
  }
  return {.largest = most, .total = vec::sum(total)};
}

LOCKSTEP_INLINE float with_sink(float logsumexp, float sink) {
  const float most = std::max(logsumexp, sink);
  return most + std::log1p(std::exp(std::min(logsumexp, sink) - most));
}

template <typename T, typename Out>
LOCKSTEP_INLINE void attend(const Group<T, Out>& g) {
  const float scale = g.scale;
  for (int64_t t = 0; t < g.length; ++t)
    for (int64_t head = 0; head < g.heads; ++head)
      g.scores[head * g.length + t] = scale * dot(g.q + head * g.size, g.k + t * g.size, g.size);
  for (int64_t head = 0; head < g.heads; ++head) {
    float* const weights = g.scores + head * g.length;
    const auto [largest, total] = softmax_weights(weights, g.length);
    float share = 1.0f / total, sum = largest + std::log(total);
    if (g.sinks) {
      const float before = sum;
      sum = with_sink(before, g.sinks[head]);
      share *= std::exp(before - sum);
    }
    if (g.logsumexp) g.logsumexp[head * g.stride] = sum;
    constexpr int64_t kStrip = 4 * kLanes;
    for (int64_t first = 0; first < g.size; first += kStrip) {
      Floats sums[4]{};
      for (int64_t t = 0; t < g.length; ++t) {
        for (int64_t i = 0; i < 4 && first + i * kLanes < g.size; ++i) {
          const int64_t at = first + i * kLanes;
          Floats value{};
          vec::load(g.v + t * g.size + at, g.size - at, value);
          sums[i] += weights[t] * value;
        }
      }
      for (int64_t i = 0; i < 4 && first + i * kLanes < g.size; ++i) {
        const int64_t at = first + i * kLanes;
        vec::store(g.out + head * g.size + at, g.size - at, sums[i] * share);
      }
    }
  }
}

LOCKSTEP_CLONES void attend_to(const Group<float>& group) { attend(group); }
LOCKSTEP_CLONES void attend_to(const Group<c10::BFloat16>& group) { attend(group); }
LOCKSTEP_CLONES void attend_to(const Group<c10::BFloat16, float>& group) { attend(group); }

// Of the tokens here those that row t of the sequence sees.
struct Seen {
  int64_t first, count;
};
Seen seen_by(const CacheSpan& span, int64_t t, int64_t window) {
  const int64_t own = span.start + t, from = window > 0 ? std::max(int64_t{0}, own + 1 - window) : 0;
  if (!span.part) return {.first = from, .count = own + 1 - from};
  const std::vector<int32_t>& here = *span.part->here;
  const auto before = [&](int64_t place) { return std::ranges::lower_bound(here, place) - here.begin(); };
  const int64_t first = from > 0 ? before(from) : 0;
  return {.first = first, .count = before(own + 1) - first};
}

// Whether the first token of the sequence is here, and so its sinks are.
bool holds_first(const CacheSpan& span) { return !span.part || (!span.part->here->empty() && span.part->here->front() == 0); }

// `logsumexp` undefined: not wanted.
template <typename T, typename Out>
void attention_decode_cpu(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans, const DecodeOptions& options,
                          const at::Tensor& out, const at::Tensor& logsumexp) {
  const int64_t seq = q.size(1), size = q.size(3), kv_heads = cache.k.size(1), group = q.size(2) / kv_heads;
  const float scale = options.scale > 0 ? static_cast<float>(options.scale) : 1.0f / std::sqrt(static_cast<float>(size));
  const at::Tensor sinks = options.sinks.defined() ? options.sinks.to(at::kFloat) : at::Tensor();
  at::parallel_for(0, q.size(0) * seq * kv_heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scores;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i % kv_heads, t = i / kv_heads % seq, b = i / kv_heads / seq;
      const CacheSpan& span = spans[static_cast<size_t>(b)];
      const auto [first, length] = seen_by(span, t, options.window);
      const float* const sink = sinks.defined() && holds_first(span) ? sinks.const_data_ptr<float>() + head * group : nullptr;
      float* const sums = logsumexp.defined() ? logsumexp.data_ptr<float>() + (b * q.size(2) + head * group) * seq + t : nullptr;
      if (length == 0) {
        for (int64_t h = 0; sink && sums && h < group; ++h) sums[h * seq] = sink[h];
        continue;
      }
      if (static_cast<int64_t>(scores.size()) < group * length) scores.resize(static_cast<size_t>(group * length));
      const int64_t offset = span.slot * cache.k.stride(0) + head * cache.k.stride(1) + first * size;
      attend_to(Group<T, Out>{
                 .q = q.const_data_ptr<T>() + b * q.stride(0) + t * q.stride(1) + head * group * size,
                 .k = cache.k.const_data_ptr<T>() + offset,
                 .v = cache.v.const_data_ptr<T>() + offset,
                 .out = out.data_ptr<Out>() + (b * seq + t) * q.size(2) * size + head * group * size,
                 .scores = scores.data(),
                 .heads = group,
                 .length = length,
                 .size = size,
                 .scale = scale,
                 .logsumexp = sums,
                 .stride = seq,
                 .sinks = sink});
    }
  });
}

// One token at a time; slices of the cache as LibTorch's kernels take them.
at::Tensor attention_decode_by_token(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans, int64_t window) {
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < q.size(0); ++b) {
    const CacheSpan& span = spans[static_cast<size_t>(b)];
    for (int64_t t = 0; t < q.size(1); ++t) {
      const auto [first, count] = seen_by(span, t, window);
      const auto seen = [&, first = first, count = count](const at::Tensor& x) { return x.narrow(0, span.slot, 1).narrow(2, first, count); };
      const at::Tensor query = q.narrow(0, b, 1).narrow(1, t, 1).transpose(1, 2);  // [1, H, 1, K]
      rows.push_back(attention_core_forward(query, seen(cache.k), seen(cache.v), /*causal=*/false, nullptr));
    }
  }
  return at::cat(rows, 1).view({q.size(0), q.size(1), -1});
}

// One token at a time, by LibTorch's operators.
void attention_here_by_token(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans,
                             const DecodeOptions& options, const SeenSums& sums) {
  const double scale = options.scale > 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const int64_t kv_heads = cache.k.size(1);
  for (int64_t i = 0; i < q.size(0) * q.size(1); ++i) {
    const int64_t b = i / q.size(1), t = i % q.size(1);
    const CacheSpan& span = spans[static_cast<size_t>(b)];
    const auto [first, count] = seen_by(span, t, options.window);
    if (options.sinks.defined() && holds_first(span)) sums.logsumexp[b].select(1, t).copy_(options.sinks);
    if (count == 0) continue;
    const auto seen = [&, first = first, count = count](const at::Tensor& x) { return x[span.slot].narrow(1, first, count); };  // [KV, L, K]
    const at::Tensor query = q[b][t].reshape({kv_heads, -1, q.size(3)});
    const at::Tensor scores = at::matmul(query, seen(cache.k).transpose(1, 2)).to(at::kFloat).mul_(scale);  // [KV, H / KV, L]
    const at::Tensor all = at::logaddexp(sums.logsumexp[b].select(1, t).view(scores.sizes().slice(0, 2)), at::logsumexp(scores, -1));
    sums.logsumexp[b].select(1, t).copy_(all.view({-1}));
    const at::Tensor weights = options.sinks.defined() ? at::exp(scores - all.unsqueeze(-1)) : at::softmax(scores, -1);
    sums.out[b][t].copy_(at::matmul(weights.to(q.scalar_type()), seen(cache.v)).flatten(0, 1));
  }
}

void check_layout(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(spans.size()), q.size(0));
  if (q.is_cpu()) LOCKSTEP_CHECK(q.stride(3) == 1 && q.stride(2) == q.size(3) && cache.k.is_contiguous() && cache.v.is_contiguous());
}

}  // namespace

at::Tensor attention_decode(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans, const DecodeOptions& options) {
  if (cache.context) return cache.context->merge(attention_decode_here(q, cache, spans, options)).to(q.scalar_type());
  check_layout(q, cache, spans);
  if (!q.is_cpu() && (options.scale > 0 || options.sinks.defined()))
    return attention_decode_here(q, cache, spans, options).out.to(q.scalar_type()).view({q.size(0), q.size(1), -1});
  if (!q.is_cpu()) return attention_decode_by_token(q, cache, spans, options.window);
  at::Tensor out = at::empty({q.size(0), q.size(1), q.size(2) * q.size(3)}, q.options());
  if (q.scalar_type() == at::kFloat)
    attention_decode_cpu<float, float>(q, cache, spans, options, out, {});
  else
    attention_decode_cpu<c10::BFloat16, c10::BFloat16>(q, cache, spans, options, out, {});
  return out;
}

SeenSums attention_decode_here(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans,
                               const DecodeOptions& options) {
  check_layout(q, cache, spans);
  const auto fp32 = q.options().dtype(at::kFloat);
  const SeenSums sums{.out = at::zeros({q.size(0), q.size(1), q.size(2), cache.v.size(3)}, fp32),
                      .logsumexp = at::full({q.size(0), q.size(2), q.size(1)}, -std::numeric_limits<float>::infinity(), fp32)};
  if (!q.is_cpu())
    attention_here_by_token(q, cache, spans, options, sums);
  else if (q.scalar_type() == at::kFloat)
    attention_decode_cpu<float, float>(q, cache, spans, options, sums.out, sums.logsumexp);
  else
    attention_decode_cpu<c10::BFloat16, float>(q, cache, spans, options, sums.out, sums.logsumexp);
  return sums;
}

}  // namespace lockstep::nn
