// Small dense products whose accumulators stay in registers, for kernels that keep their operands in cache. For the
// bodies of functions marked LOCKSTEP_CLONES alone (vector_math.h).
#pragma once

#include <utility>

#include "lockstep/nn/vector_math.h"

#define LOCKSTEP_INLINE_LAMBDA __attribute__((always_inline))

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn::tile {

// A matrix in memory: element (i, j) at data[i * row + j * column].
struct Left {
  const float* data;
  int64_t row;
  int64_t column;
};

// c [M, 16 N] = (kAdd ? c : 0) + a [M, depth] b [depth, 16 N]; b and c with rows of `b_row` and `c_row` elements. About 24
// accumulators hide the latency of the multiply-adds and leave registers for b: choose M N <= 24.
template <int M, int N, bool kAdd>
LOCKSTEP_INLINE void multiply(const Left& a, const float* b, int64_t b_row, int64_t depth, float* c, int64_t c_row) {
  vec::Floats sums[M * N];
  // Indices known while parsing: only then does GCC keep the array in registers.
  const auto each = [](auto count, const auto& body) LOCKSTEP_INLINE_LAMBDA {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) LOCKSTEP_INLINE_LAMBDA {
      (body(std::integral_constant<int, kIndex>{}), ...);
    }(std::make_integer_sequence<int, count.value>{});
  };
  constexpr std::integral_constant<int, M * N> kAll;
  each(kAll, [&](auto i) LOCKSTEP_INLINE_LAMBDA {
    sums[i] = vec::Floats{};
    if constexpr (kAdd) std::memcpy(&sums[i], c + i / N * c_row + i % N * vec::kLanes, sizeof sums[i]);
  });
  for (int64_t k = 0; k < depth; ++k) {
    vec::Floats right[N];
    each(std::integral_constant<int, N>{}, [&](auto n) LOCKSTEP_INLINE_LAMBDA {
      std::memcpy(&right[n], b + k * b_row + n * vec::kLanes, sizeof right[n]);
    });
    each(kAll, [&](auto i) LOCKSTEP_INLINE_LAMBDA {
      sums[i] += a.data[i / N * a.row + k * a.column] * right[i % N];
    });
  }
  each(kAll, [&](auto i) LOCKSTEP_INLINE_LAMBDA {
    std::memcpy(c + i / N * c_row + i % N * vec::kLanes, &sums[i], sizeof sums[i]);
  });
}

// c [rows, columns] += a [rows, depth] b [depth, columns]: rows a multiple of 48, columns of 16. The tile of rows
// [first, last) takes the depths of range(first, last) only, a pair [begin, end): the others are zero in a.
template <int M, int N, typename Range>
LOCKSTEP_INLINE void add_rows(const Left& a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t rows,
                              const Range& range) {
  for (int64_t first = 0; first < rows; first += M) {
    const auto [begin, end] = range(first, first + M);
    multiply<M, N, true>({a.data + first * a.row + begin * a.column, a.row, a.column}, b + begin * b_row, b_row,
                         end - begin, c + first * c_row, c_row);
  }
}

template <typename Range>
LOCKSTEP_INLINE void add(const Left& a, const float* b, float* c, int64_t rows, int64_t columns, const Range& range) {
  for (int64_t column = 0; column < columns; column += 4 * vec::kLanes) {
    const int64_t vectors = (columns - column) / vec::kLanes;
    if (vectors >= 4)
      add_rows<6, 4>(a, b + column, columns, c + column, columns, rows, range);
    else if (vectors == 3)
      add_rows<8, 3>(a, b + column, columns, c + column, columns, rows, range);
    else if (vectors == 2)
      add_rows<12, 2>(a, b + column, columns, c + column, columns, rows, range);
    else
      add_rows<16, 1>(a, b + column, columns, c + column, columns, rows, range);
  }
}

// Sixteen vectors as a matrix become its transpose: four rounds that swap blocks of 8, 4, 2 and 1 elements.
LOCKSTEP_INLINE void transpose(vec::Floats (&rows)[vec::kLanes]) {
  const auto round = [&]<int kWidth>(std::integral_constant<int, kWidth>) LOCKSTEP_INLINE_LAMBDA {
    vec::Ints upper, lower;
    for (int lane = 0; lane < vec::kLanes; ++lane) {
      const bool second = lane & kWidth;
      upper[lane] = second ? vec::kLanes + lane - kWidth : lane;
      lower[lane] = second ? vec::kLanes + lane : lane + kWidth;
    }
#pragma GCC unroll 16
    for (int i = 0; i < vec::kLanes; ++i) {
      if (i & kWidth) continue;
      const vec::Floats a = rows[i], b = rows[i + kWidth];
      rows[i] = __builtin_shuffle(a, b, upper);
      rows[i + kWidth] = __builtin_shuffle(a, b, lower);
    }
  };
  round(std::integral_constant<int, 8>{});
  round(std::integral_constant<int, 4>{});
  round(std::integral_constant<int, 2>{});
  round(std::integral_constant<int, 1>{});
}

}  // namespace lockstep::nn::tile

#pragma GCC diagnostic pop
