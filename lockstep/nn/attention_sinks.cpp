#include "lockstep/nn/attention_sinks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/nn/attention_spans.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;
using BFloat16 = c10::BFloat16;

template <typename T>
LOCKSTEP_INLINE void shrink(T* x, int64_t size, float factor) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats a{};
    vec::load(x + i, size - i, a);
    vec::store(x + i, size - i, a * factor);
  }
}

template <typename T>
LOCKSTEP_INLINE float dot(const T* x, const T* y, int64_t size) {
  Floats sum{};
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats a{}, b{};
    vec::load(x + i, size - i, a);
    vec::load(y + i, size - i, b);
    sum += a * b;
  }
  return vec::sum(sum);
}

LOCKSTEP_CLONES void shrink_of(float* x, int64_t size, float factor) { shrink(x, size, factor); }
LOCKSTEP_CLONES void shrink_of(BFloat16* x, int64_t size, float factor) { shrink(x, size, factor); }
LOCKSTEP_CLONES float dot_of(const float* x, const float* y, int64_t size) { return dot(x, y, size); }
LOCKSTEP_CLONES float dot_of(const BFloat16* x, const BFloat16* y, int64_t size) { return dot(x, y, size); }

struct Sizes {
  int64_t batch, seq, heads, width;
};
Sizes sizes_of(const at::Tensor& sinks, const at::Tensor& out, const at::Tensor& logsumexp) {
  LOCKSTEP_CHECK(out.dim() == 4 && sinks.dim() == 1 && sinks.size(0) == out.size(2), "sinks ", sinks.sizes(), " of outputs ", out.sizes());
  LOCKSTEP_CHECK(logsumexp.sizes() == at::IntArrayRef({out.size(0), out.size(2), out.size(1)}), "logsumexp ", logsumexp.sizes(), " of ",
                 out.sizes());
  return {.batch = out.size(0), .seq = out.size(1), .heads = out.size(2), .width = out.size(3)};
}

float sum_of(float logsumexp, float sink) {
  const float most = std::max(logsumexp, sink), least = std::min(logsumexp, sink);
  return most + std::log1p(std::exp(least - most));
}

// What the heads of one kind of number are.
template <typename Body>
void of_dtype(const at::Tensor& out, const Body& body) {
  LOCKSTEP_CHECK(out.is_contiguous(), "outputs of strides ", out.strides());
  if (out.scalar_type() == at::kFloat) return body(float{});
  LOCKSTEP_CHECK(out.scalar_type() == at::kBFloat16, "attention in ", out.dtype());
  body(BFloat16{});
}

}  // namespace

void apply_sinks(const at::Tensor& sinks, const at::Tensor& out, const at::Tensor& logsumexp) {
  const Sizes s = sizes_of(sinks, out, logsumexp);
  const at::Tensor scores = sinks.to(at::kFloat);
  if (!out.is_cpu()) {
    SeenSums seen{.out = out, .logsumexp = logsumexp};
    return attend_sinks(scores, seen);
  }
  LOCKSTEP_CHECK(logsumexp.is_contiguous(), "logsumexp of strides ", logsumexp.strides());
  const float* const score = scores.const_data_ptr<float>();
  float* const sums = logsumexp.data_ptr<float>();
  of_dtype(out, [&]<typename T>(T) {
    T* const values = out.data_ptr<T>();
    at::parallel_for(0, s.batch * s.seq, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t head = 0; head < s.heads; ++head) {
          float& sum = sums[(row / s.seq * s.heads + head) * s.seq + row % s.seq];
          const float with = sum_of(sum, score[head]);
          shrink_of(values + (row * s.heads + head) * s.width, s.width, std::exp(sum - with));
          sum = with;
        }
    });
  });
}

// Its value is zero, so that of its score is its weight times -sum(dout * out).
void add_sinks_gradient(const at::Tensor& sinks, const at::Tensor& dout, const at::Tensor& out, const at::Tensor& logsumexp,
                        const at::Tensor& dsinks) {
  const Sizes s = sizes_of(sinks, out, logsumexp);
  const at::Tensor scores = sinks.to(at::kFloat);
  if (!out.is_cpu()) return attend_sinks_backward(dout, {.out = out, .logsumexp = logsumexp}, scores, dsinks);
  LOCKSTEP_CHECK(dout.sizes() == out.sizes() && dout.is_contiguous() && dout.scalar_type() == out.scalar_type(), "dout ", dout.sizes(), " in ",
                 dout.dtype(), " of ", out.sizes(), " in ", out.dtype());
  const float* const score = scores.const_data_ptr<float>();
  const float* const sums = logsumexp.const_data_ptr<float>();
  float* const gradient = dsinks.data_ptr<float>();
  of_dtype(out, [&]<typename T>(T) {
    const T* const d = dout.const_data_ptr<T>();
    const T* const values = out.const_data_ptr<T>();
    at::parallel_for(0, s.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        double total = 0;
        for (int64_t row = 0; row < s.batch * s.seq; ++row) {
          const float weight = std::exp(score[head] - sums[(row / s.seq * s.heads + head) * s.seq + row % s.seq]);
          const int64_t at = (row * s.heads + head) * s.width;
          total += static_cast<double>(weight * dot_of(d + at, values + at, s.width));
        }
        gradient[head] -= static_cast<float>(total);
      }
    });
  });
}

}  // namespace lockstep::nn
