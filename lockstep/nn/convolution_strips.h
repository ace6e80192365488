// What the passes of the causal convolution on the CPU (convolution_cpu.cpp) do with a strip of channels of one piece of a sequence, sixteen
// channels of one token at a time. For the bodies of functions marked LOCKSTEP_CLONES alone (vector_math.h).
#pragma once

#include <cstdint>

#include "lockstep/nn/tile.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn::strips {

using vec::Floats;
using vec::kLanes;

constexpr int64_t kStrip = 128;  // channels of one piece of work: its rows stay in the core's cache
constexpr int kUnrolled = 4;     // W of nearly all models

template <typename T>
struct Strip {
  int64_t channels, width, length;
  const T* x;         // of the piece's first token
  int64_t x_row;
  const T* before;    // [W - 1] rows of `before_row`, or null: zeros
  int64_t before_row;
  const float* weight;  // [W, kStrip], then the bias [kStrip]
  const int32_t* taps;  // by token: how many of the last W columns it sees, itself among them
};

// Column t of the piece, t < 0: before it.
template <typename T>
LOCKSTEP_INLINE void column(const Strip<T>& s, int64_t t, int64_t i, Floats& x) {
  x = Floats{};
  if (t >= 0)
    vec::load(s.x + t * s.x_row + i, s.channels - i, x);
  else if (s.before)
    vec::load(s.before + (s.width - 1 + t) * s.before_row + i, s.channels - i, x);
}

// Whether all columns that token t sees are tokens of the piece.
template <typename T>
bool whole(const Strip<T>& s, int64_t t) {
  return s.taps[t] == s.width && t + 1 >= s.width;
}

// kWidth: W where the loop over it is unrolled, for tokens that see whole windows; else 0.
template <int kWidth, typename T>
LOCKSTEP_INLINE Floats sum_of(const Strip<T>& s, int64_t t, int64_t i) {
  Floats sum{}, x{}, weight{};
  vec::load(s.weight + s.width * kStrip + i, kLanes, sum);
  const auto add = [&](int64_t w) LOCKSTEP_INLINE_LAMBDA {
    vec::load(s.weight + w * kStrip + i, kLanes, weight);
    sum += x * weight;
  };
  if constexpr (kWidth > 0) {
#pragma GCC unroll 8
    for (int64_t w = 0; w < kWidth; ++w) {
      vec::load(s.x + (t - kWidth + 1 + w) * s.x_row + i, s.channels - i, x);
      add(w);
    }
  } else {
    for (int64_t w = s.width - s.taps[t]; w < s.width; ++w) {
      column(s, t - s.width + 1 + w, i, x);
      add(w);
    }
  }
  return sum;
}

LOCKSTEP_INLINE Floats sigmoid(const Floats& x) { return 1.0f / (1.0f + vec::exp(-x)); }

// dy times the derivative of silu.
template <int kWidth, typename T>
LOCKSTEP_INLINE Floats dsum_of(const Strip<T>& s, const T* dy, int64_t t, int64_t i) {
  Floats gradient{};
  vec::load(dy + i, s.channels - i, gradient);
  const Floats sum = sum_of<kWidth>(s, t, i), open = sigmoid(sum);
  return gradient * (open + sum * open * (1.0f - open));
}

// Rows lie too far apart for the processor to see the next one coming.
template <typename T>
LOCKSTEP_INLINE void prefetch(const T* rows, int64_t stride, int64_t t, const Strip<T>& s) {
  constexpr int64_t kAhead = 16, kLine = 64 / static_cast<int64_t>(sizeof(T));
  if (t + kAhead >= s.length) return;
  for (int64_t i = 0; i < s.channels; i += kLine) __builtin_prefetch(rows + (t + kAhead) * stride + i);
}

}  // namespace lockstep::nn::strips

#pragma GCC diagnostic pop
