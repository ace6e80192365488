// Softmax of one row of logits in the passes that its loss needs: inside cross_entropy.cpp, here and of a cut vocabulary.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {

// fp32 rows keep their exponentials between the passes; bf16 would round them once more.
template <typename T>
inline constexpr bool kKeepsExponentials = std::is_same_v<T, float>;

struct RowSum {
  float largest, sum;  // of the logits, and of e^(logit - largest)
};

// One row stays in the core's cache from its first pass to its last.
template <typename T>
LOCKSTEP_INLINE RowSum sum_row(T* row, int64_t size) {
  const vec::Floats none = vec::splat(-std::numeric_limits<float>::infinity());
  vec::Floats most = none;
  for (int64_t i = 0; i < size; i += vec::kLanes) {
    vec::Floats x = none;
    vec::load(row + i, size - i, x);
    most = x > most ? x : most;
  }
  const float largest = vec::max(most);
  vec::Floats total{};
  for (int64_t i = 0; i < size; i += vec::kLanes) {
    vec::Floats x = none;
    vec::load(row + i, size - i, x);
    const vec::Floats e = vec::exp(x - largest);
    // Lanes past the end hold e^-87, far below the last bit of a sum that is at least 1.
    total += e;
    if constexpr (kKeepsExponentials<T>) vec::store(row + i, size - i, e);
  }
  return {.largest = largest, .sum = vec::sum(total)};
}

// Behind sum_row: e^(logit - largest) * scale; where exponentials are kept, these times scale.
template <typename T>
LOCKSTEP_INLINE void scale_row(T* row, int64_t size, float largest, float scale) {
  for (int64_t i = 0; i < size; i += vec::kLanes) {
    vec::Floats x = vec::splat(-std::numeric_limits<float>::infinity());
    vec::load(row + i, size - i, x);
    vec::store(row + i, size - i, (kKeepsExponentials<T> ? x : vec::exp(x - largest)) * scale);
  }
}

}  // namespace lockstep::nn

#pragma GCC diagnostic pop
