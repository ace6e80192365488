#include "lockstep/nn/state_space_cpu_gradients.h"

#include <algorithm>

#include "lockstep/nn/tile.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn::scan_cpu {
namespace {

using vec::Floats;
using vec::kLanes;

// Sixteen rows' sums at once: lane i is the sum of the lanes of rows[i].
LOCKSTEP_INLINE Floats sums_of(Floats (&rows)[kLanes]) {
  tile::transpose(rows);
  Floats sum = rows[0];
  for (int i = 1; i < kLanes; ++i) sum += rows[i];
  return sum;
}

template <bool kAdd>
LOCKSTEP_INLINE void dots_of(const float* a, const float* b, int64_t rows, int64_t columns, float* to, float* dots) {
  for (int64_t first = 0; first < rows; first += kLanes) {
    Floats sums[kLanes];
    for (int64_t row = 0; row < kLanes; ++row) {
      Floats sum{};
      for (int64_t i = (first + row) * columns; i < (first + row + 1) * columns; i += kLanes) {
        Floats x{}, y{}, before{};
        vec::load(a + i, kLanes, x);
        vec::load(b + i, kLanes, y);
        sum += x * y;
        if constexpr (kAdd) {
          vec::load(to + i, kLanes, before);
          vec::store(to + i, kLanes, before + x);
        }
      }
      sums[row] = sum;
    }
    vec::store(dots + first, kLanes, sums_of(sums));
  }
}

template <typename T>
LOCKSTEP_INLINE float dx_of(const float* dinputs, const float* dy, const Decays& decays, const Tokens& tokens, int64_t columns, float d,
                            const Rows<const T>& x, const Rows<T>& dx, TokenSums& token_sums) {
  const int64_t width = padded(columns);
  Floats along{};
  for (int64_t first = 0; first < tokens.rows; first += kLanes) {
    Floats sums[kLanes] = {};
    for (int64_t row = first; row < std::min(first + kLanes, tokens.count); ++row) {
      Floats sum{};
      for (int64_t i = 0; i < columns; i += kLanes) {
        Floats value{}, gradient{}, output{};
        vec::load(x.data + row * x.stride + i, columns - i, value);
        vec::load(dinputs + row * width + i, kLanes, gradient);
        vec::load(dy + row * width + i, kLanes, output);
        sum += value * gradient;
        along += value * output;
        vec::store(dx.data + row * dx.stride + i, columns - i, decays.delta[row] * gradient + d * output);
      }
      sums[row - first] = sum;
    }
    vec::store(token_sums.inputs + first, kLanes, sums_of(sums));
  }
  return vec::sum(along);
}

template <typename T>
LOCKSTEP_INLINE void parts_sum(const float* from, int64_t parts, int64_t part, int64_t columns, T* to) {
  for (int64_t i = 0; i < columns; i += kLanes) {
    Floats sum{};
    for (int64_t k = 0; k < parts; ++k) {
      Floats x{};
      vec::load(from + k * part + i, columns - i, x);
      sum += x;
    }
    vec::store(to + i, columns - i, sum);
  }
}

}  // namespace

LOCKSTEP_CLONES void scores_backward(const float* dmasked, const float* decay, const float* scores, int64_t rows, float* dscores, TokenSums& sums) {
  Floats seeing[kBlock] = {};
  for (int64_t column = 0; column < rows; column += kLanes) {
    Floats seen{};
    for (int64_t row = column; row < rows; ++row) {
      const int64_t at = row * kBlock + column;
      Floats gradient{}, factor{}, score{}, sum{};
      vec::load(dmasked + at, kLanes, gradient);
      vec::load(decay + at, kLanes, factor);
      vec::load(scores + at, kLanes, score);
      vec::load(dscores + at, kLanes, sum);
      gradient *= factor;
      vec::store(dscores + at, kLanes, sum + gradient);
      gradient *= score;
      if (row < column + kLanes) gradient[row - column] = 0.0f;  // of a token with itself, whose decay is 1 whatever the steps are
      seeing[row] += gradient;
      seen += gradient;
    }
    vec::store(sums.seen + column, kLanes, seen);
  }
  for (int64_t row = 0; row < rows; row += kLanes) {
    Floats block[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) block[i] = seeing[row + i];
    vec::store(sums.seeing + row, kLanes, sums_of(block));
  }
}

LOCKSTEP_CLONES void dot_rows(const float* a, const float* b, int64_t rows, int64_t columns, float* dots) {
  dots_of<false>(a, b, rows, columns, nullptr, dots);
}
LOCKSTEP_CLONES void add_and_dot_rows(const float* a, const float* b, int64_t rows, int64_t columns, float* to, float* dots) {
  dots_of<true>(a, b, rows, columns, to, dots);
}

LOCKSTEP_CLONES float dot(const float* a, const float* b, int64_t size) {
  Floats sums[4] = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats x{}, y{};
    vec::load(a + i, kLanes, x);
    vec::load(b + i, kLanes, y);
    sums[i / kLanes % 4] += x * y;
  }
  return vec::sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

LOCKSTEP_CLONES float put_dx(const float* dinputs, const float* dy, const Decays& decays, const Tokens& tokens, int64_t columns, float d,
                             const Rows<const float>& x, const Rows<float>& dx, TokenSums& sums) {
  return dx_of(dinputs, dy, decays, tokens, columns, d, x, dx, sums);
}
LOCKSTEP_CLONES float put_dx(const float* dinputs, const float* dy, const Decays& decays, const Tokens& tokens, int64_t columns, float d,
                             const Rows<const c10::BFloat16>& x, const Rows<c10::BFloat16>& dx, TokenSums& sums) {
  return dx_of(dinputs, dy, decays, tokens, columns, d, x, dx, sums);
}

LOCKSTEP_CLONES void sum_parts(const float* from, int64_t parts, int64_t part, int64_t columns, float* to) {
  parts_sum(from, parts, part, columns, to);
}
LOCKSTEP_CLONES void sum_parts(const float* from, int64_t parts, int64_t part, int64_t columns, c10::BFloat16* to) {
  parts_sum(from, parts, part, columns, to);
}

}  // namespace lockstep::nn::scan_cpu
