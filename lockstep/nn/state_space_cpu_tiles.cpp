#include "lockstep/nn/state_space_cpu_tiles.h"

#include <algorithm>
#include <utility>

#include "lockstep/nn/tile.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn::scan_cpu {
namespace {

using vec::Floats;
using vec::kLanes;

// Calls body with every index below kCount as a constant: only then does GCC keep an array of vectors in registers.
template <int kCount, typename Body>
LOCKSTEP_INLINE void each(const Body& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) LOCKSTEP_INLINE_LAMBDA {
    (body(std::integral_constant<int, kIndex>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

// One tile [M, 16 N] of a product; finish(row, vector, sum) takes what was summed in registers.
template <int M, int N, typename Finish>
LOCKSTEP_INLINE void sum_tile(const Matrix& left, const float* right, int64_t right_row, int64_t depth, const Finish& finish) {
  Floats sums[M * N];
  each<M * N>([&](auto i) LOCKSTEP_INLINE_LAMBDA { sums[i] = Floats{}; });
  for (int64_t k = 0; k < depth; ++k) {
    Floats row[N];
    each<N>([&](auto n) LOCKSTEP_INLINE_LAMBDA { vec::load(right + k * right_row + n * kLanes, kLanes, row[n]); });
    each<M * N>([&](auto i) LOCKSTEP_INLINE_LAMBDA { sums[i] += left.data[i / N * left.row + k * left.column] * row[i % N]; });
  }
  each<M * N>([&](auto i) LOCKSTEP_INLINE_LAMBDA { finish(i / N, i % N, sums[i]); });
}

template <int M, int N, typename Finish>
LOCKSTEP_INLINE void sum_rows(const Product& p, int64_t first, int64_t column, const Finish& finish) {
  const int64_t begin = p.depths == Depths::kFromRow ? std::min(first, p.depth) : 0;
  const int64_t end = p.depths == Depths::kUpToRow ? std::min(first + M, p.depth) : p.depth;
  sum_tile<M, N>({p.left.data + first * p.left.row + begin * p.left.column, p.left.row, p.left.column},
                 p.right + begin * p.right_row + column, p.right_row, end - begin,
                 [&](int row, int vector, const Floats& sum) LOCKSTEP_INLINE_LAMBDA { finish(first + row, column + vector * kLanes, sum); });
}

// Rows [first, end) of 16 N columns. M N accumulators hide the latency of the multiply-adds and leave registers for a row of `right`.
template <int N, typename Finish>
LOCKSTEP_INLINE void sum_columns(const Product& p, int64_t first, int64_t end, int64_t column, const Finish& finish) {
  constexpr int M = N == 4 ? 4 : N == 1 ? 16 : 8;  // divides 16
  for (; first + M <= end; first += M) sum_rows<M, N>(p, first, column, finish);
}

template <typename Finish>
LOCKSTEP_INLINE void sum_product(const Product& p, int64_t first, int64_t end, int64_t columns, const Finish& finish) {
  for (int64_t column = 0; column < columns; column += 4 * kLanes) {
    const int64_t vectors = (columns - column) / kLanes;
    if (vectors >= 4)
      sum_columns<4>(p, first, end, column, finish);
    else if (vectors == 3)
      sum_columns<3>(p, first, end, column, finish);
    else if (vectors == 2)
      sum_columns<2>(p, first, end, column, finish);
    else
      sum_columns<1>(p, first, end, column, finish);
  }
}

}  // namespace

LOCKSTEP_CLONES void multiply(const Product& product, const float* row_scale, const Result& to) {
  sum_product(product, 0, to.rows, to.columns, [&](int64_t row, int64_t column, const Floats& sum) LOCKSTEP_INLINE_LAMBDA {
    vec::store(to.data + row * to.row + column, kLanes, row_scale ? sum * row_scale[row] : sum);
  });
}

LOCKSTEP_CLONES void add(const Product& product, float keep, const Result& to) {
  sum_product(product, 0, to.rows, to.columns, [&](int64_t row, int64_t column, const Floats& sum) LOCKSTEP_INLINE_LAMBDA {
    Floats before{};
    vec::load(to.data + row * to.row + column, kLanes, before);
    vec::store(to.data + row * to.row + column, kLanes, before * keep + sum);
  });
}

LOCKSTEP_CLONES void multiply_lower(const Product& product, const Result& to) {
  for (int64_t first = 0; first < to.rows; first += kUnit)
    sum_product(product, first, first + kUnit, first + kUnit, [&](int64_t row, int64_t column, const Floats& sum) LOCKSTEP_INLINE_LAMBDA {
      vec::store(to.data + row * to.row + column, kLanes, sum);
    });
}

LOCKSTEP_CLONES void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      Floats block[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        block[i] = Floats{};
        if (row + i < rows) vec::load(from + (row + i) * from_row + column, columns - column, block[i]);
      }
      tile::transpose(block);
      for (int64_t i = 0; i < std::min(kLanes, columns - column); ++i)
        vec::store(to + (column + i) * to_row + row, rows - row, block[i]);
    }
  }
}

}  // namespace lockstep::nn::scan_cpu
