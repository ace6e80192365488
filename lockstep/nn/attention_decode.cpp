#include "lockstep/nn/attention_decode.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
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
template <typename T>
struct Group {
  const T* q;     // [heads, size]
  const T* k;     // [length, size]
  const T* v;     // [length, size]
  T* out;         // [heads, size]
  float* scores;  // [heads, length]: workspace
  int64_t heads, length, size;
  float scale;
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

// Turns scores into weights e^(score - largest); returns their sum.
LOCKSTEP_INLINE float softmax_weights(float* scores, int64_t length) {
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
  return vec::sum(total);
}

template <typename T>
LOCKSTEP_INLINE void attend(const Group<T>& g) {
  const float scale = g.scale;
  for (int64_t t = 0; t < g.length; ++t)
    for (int64_t head = 0; head < g.heads; ++head)
      g.scores[head * g.length + t] = scale * dot(g.q + head * g.size, g.k + t * g.size, g.size);
  for (int64_t head = 0; head < g.heads; ++head) {
    float* const weights = g.scores + head * g.length;
    const float total = softmax_weights(weights, g.length);
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
        vec::store(g.out + head * g.size + at, g.size - at, sums[i] * (1.0f / total));
      }
    }
  }
}

LOCKSTEP_CLONES void attend_to(const Group<float>& group) { attend(group); }
LOCKSTEP_CLONES void attend_to(const Group<c10::BFloat16>& group) { attend(group); }

template <typename T>
void append(const at::Tensor& from, const at::Tensor& to, std::span<const CacheSpan> spans) {
  const int64_t size = from.size(3);
  for (int64_t b = 0; b < from.size(0); ++b) {
    const CacheSpan& span = spans[static_cast<size_t>(b)];
    for (int64_t t = 0; t < from.size(1); ++t) {
      for (int64_t head = 0; head < from.size(2); ++head) {
        const T* row = from.const_data_ptr<T>() + b * from.stride(0) + t * from.stride(1) + head * from.stride(2);
        std::copy_n(row, size, to.data_ptr<T>() + span.slot * to.stride(0) + head * to.stride(1) + (span.start + t) * size);
      }
    }
  }
}

template <typename T>
void attention_decode_cpu(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans, double given,
                          const at::Tensor& out) {
  const int64_t seq = q.size(1), size = q.size(3), kv_heads = cache.k.size(1), group = q.size(2) / kv_heads;
  const float scale = given > 0 ? static_cast<float>(given) : 1.0f / std::sqrt(static_cast<float>(size));
  at::parallel_for(0, q.size(0) * seq * kv_heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scores;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i % kv_heads, t = i / kv_heads % seq, b = i / kv_heads / seq;
      const CacheSpan& span = spans[static_cast<size_t>(b)];
      const int64_t length = span.start + t + 1;
      if (static_cast<int64_t>(scores.size()) < group * length) scores.resize(static_cast<size_t>(group * length));
      const int64_t offset = span.slot * cache.k.stride(0) + head * cache.k.stride(1);
      attend_to({.q = q.const_data_ptr<T>() + b * q.stride(0) + t * q.stride(1) + head * group * size,
                 .k = cache.k.const_data_ptr<T>() + offset,
                 .v = cache.v.const_data_ptr<T>() + offset,
                 .out = out.data_ptr<T>() + (b * seq + t) * q.size(2) * size + head * group * size,
                 .scores = scores.data(),
                 .heads = group,
                 .length = length,
                 .size = size,
                 .scale = scale});
    }
  });
}

// One token at a time; slices of the cache as LibTorch's kernels take them.
at::Tensor attention_decode_by_token(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans) {
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < q.size(0); ++b) {
    const CacheSpan& span = spans[static_cast<size_t>(b)];
    for (int64_t t = 0; t < q.size(1); ++t) {
      const auto seen = [&](const at::Tensor& x) { return x.narrow(0, span.slot, 1).narrow(2, 0, span.start + t + 1); };
      const at::Tensor query = q.narrow(0, b, 1).narrow(1, t, 1).transpose(1, 2);  // [1, H, 1, K]
      rows.push_back(attention_core_forward(query, seen(cache.k), seen(cache.v), /*causal=*/false, nullptr));
    }
  }
  return at::cat(rows, 1).view({q.size(0), q.size(1), -1});
}

}  // namespace

void append_to_cache(const at::Tensor& k, const at::Tensor& v, const KvCacheLayer& cache, std::span<const CacheSpan> spans) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(spans.size()), k.size(0));
  for (const CacheSpan& span : spans)
    LOCKSTEP_CHECK(span.slot < cache.k.size(0) && span.start + k.size(1) <= cache.k.size(2), "slot ", span.slot, ", tokens ",
                   span.start, " + ", k.size(1), " of ", cache.k.size(2));
  if (k.is_cpu() && k.scalar_type() == at::kFloat) return append<float>(k, cache.k, spans), append<float>(v, cache.v, spans);
  for (size_t b = 0; b < spans.size(); ++b) {
    const auto place = [&](const at::Tensor& x) { return x[spans[b].slot].narrow(1, spans[b].start, k.size(1)); };
    place(cache.k).copy_(k[static_cast<int64_t>(b)].transpose(0, 1));
    place(cache.v).copy_(v[static_cast<int64_t>(b)].transpose(0, 1));
  }
}

at::Tensor attention_decode(const at::Tensor& q, const KvCacheLayer& cache, std::span<const CacheSpan> spans, double scale) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(spans.size()), q.size(0));
  if (!q.is_cpu()) {
    LOCKSTEP_CHECK(scale == 0, "scores scaled by ", scale);
    return attention_decode_by_token(q, cache, spans);
  }
  LOCKSTEP_CHECK(q.stride(3) == 1 && q.stride(2) == q.size(3) && cache.k.is_contiguous() && cache.v.is_contiguous());
  at::Tensor out = at::empty({q.size(0), q.size(1), q.size(2) * q.size(3)}, q.options());
  if (q.scalar_type() == at::kFloat)
    attention_decode_cpu<float>(q, cache, spans, scale, out);
  else
    attention_decode_cpu<c10::BFloat16>(q, cache, spans, scale, out);
  return out;
}

}  // namespace lockstep::nn
