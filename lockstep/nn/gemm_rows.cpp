#include "lockstep/nn/gemm_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

using Product = FewRowsProduct;

// The sixteen lanes in pairs: always the same order.
LOCKSTEP_INLINE float sum_pairs(const Floats& x) {
  using Eight = float __attribute__((vector_size(32)));
  using Four = float __attribute__((vector_size(16)));
  Eight low, high;
  std::memcpy(&low, &x, sizeof low);
  std::memcpy(&high, reinterpret_cast<const char*>(&x) + sizeof low, sizeof high);
  low += high;
  Four a, b;
  std::memcpy(&a, &low, sizeof a);
  std::memcpy(&b, reinterpret_cast<const char*>(&low) + sizeof a, sizeof b);
  a += b;
  return (a[0] + a[2]) + (a[1] + a[3]);
}

LOCKSTEP_INLINE void load16(const float* from, Floats& to) { std::memcpy(&to, from, sizeof to); }

// What is left of K beyond whole vectors.
inline float dot(const float* a, const float* b, int64_t size) {
  float sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

// Where the next rows of the weight lie. They are asked for a little in every step of the tile before them: the
// processor's own prefetching starts anew with every row, which cost up to half of the rate.
struct Ahead {
  const float* from;
};

// kRows x kColumns sums at a time, with constants as indices: from loops over them GCC 12 made half as fast code. Every
// sum has one accumulator of sixteen lanes that runs down K, whatever the size of the tile.
template <int kRows, int kColumns, int kLinesAhead, size_t... kJ, size_t... kI>
LOCKSTEP_INLINE void tile(const Product& p, int64_t row, int64_t column, Ahead ahead, std::index_sequence<kJ...>,
                          std::index_sequence<kI...>) {
  const float* const x = p.x + row * p.depth;
  const float* const w = p.weight + column * p.depth;
  Floats sums[kRows * kColumns]{}, b[kColumns], a[kRows * kColumns];
  int64_t k = 0;
  for (; k + kLanes <= p.depth; k += kLanes) {
    for (int line = 0; line < kLinesAhead; ++line)
      __builtin_prefetch(ahead.from + k * kLinesAhead + line * kLanes, /*write=*/0, /*locality=*/2);
    (load16(w + static_cast<int64_t>(kJ) * p.depth + k, b[kJ]), ...);
    (load16(x + static_cast<int64_t>(kI / kColumns) * p.depth + k, a[kI]), ...);
    ((sums[kI] += a[kI] * b[kI % kColumns]), ...);
  }
  float* const out = p.out + row * p.columns + column;
  ((out[static_cast<int64_t>(kI / kColumns) * p.columns + static_cast<int64_t>(kI % kColumns)] =
        sum_pairs(sums[kI]) + (p.bias ? p.bias[column + static_cast<int64_t>(kI % kColumns)] : 0.0f)),
   ...);
  if (k == p.depth) return;
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kColumns; ++j)
      out[i * p.columns + j] += dot(x + i * p.depth + k, w + j * p.depth + k, p.depth - k);
}

template <int kRows, int kColumns, int kLinesAhead>
LOCKSTEP_INLINE void tile(const Product& p, int64_t row, int64_t column, Ahead ahead = {nullptr}) {
  tile<kRows, kColumns, kLinesAhead>(p, row, column, ahead, std::make_index_sequence<kColumns>(),
                                     std::make_index_sequence<kRows * kColumns>());
}

// The rows from `row` on: fewer than four.
template <int kColumns, int kLinesAhead>
LOCKSTEP_INLINE void last_rows(const Product& p, int64_t row, int64_t column, Ahead ahead = {nullptr}) {
  if (p.rows - row == 3) tile<3, kColumns, kLinesAhead>(p, row, column, ahead);
  if (p.rows - row == 2) tile<2, kColumns, kLinesAhead>(p, row, column, ahead);
  if (p.rows - row == 1) tile<1, kColumns, kLinesAhead>(p, row, column, ahead);
}

// Four columns, and what the next four need from memory spread over the first tiles.
template <int kTilesAhead>
LOCKSTEP_INLINE void four_columns(const Product& p, int64_t column) {
  const float* const next = p.weight + (column + 4) * p.depth;
  int64_t row = 0;
  for (; row < 4 * kTilesAhead; row += 4)
    tile<4, 4, 4 / kTilesAhead>(p, row, column, {next + row / 4 * (4 / kTilesAhead) * p.depth});
  for (; row + 4 <= p.rows; row += 4) tile<4, 4, 0>(p, row, column);
  last_rows<4, 0>(p, row, column);
}

// Columns [begin, end): rows of the weight.
LOCKSTEP_CLONES void multiply_columns(const Product& p, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + 4 <= end; column += 4) {
    if (p.rows < 4)
      last_rows<4, 4>(p, 0, column, {p.weight + (column + 4) * p.depth});
    else if (p.rows < 8)
      four_columns<1>(p, column);
    else
      four_columns<2>(p, column);
  }
  for (; column < end; ++column) {
    int64_t row = 0;
    for (; row + 4 <= p.rows; row += 4) tile<4, 1, 0>(p, row, column);
    last_rows<1, 0>(p, row, column);
  }
}

}  // namespace

void multiply_few_rows(const FewRowsProduct& product, int64_t begin, int64_t end) { multiply_columns(product, begin, end); }

at::Tensor multiply_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  LOCKSTEP_CHECK_EQ(x.size(1), weight.size(1));
  LOCKSTEP_CHECK(x.is_contiguous() && weight.is_contiguous());
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  const Product product{.x = x.const_data_ptr<float>(),
                        .weight = weight.const_data_ptr<float>(),
                        .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                        .out = out.data_ptr<float>(),
                        .rows = x.size(0),
                        .columns = weight.size(0),
                        .depth = weight.size(1)};
  constexpr int64_t kBytesWorthAThread = int64_t{1} << 16;
  const int64_t grain = std::max<int64_t>(4, kBytesWorthAThread / (product.depth * 4 + 1));
  at::parallel_for(0, product.columns, grain,
                   [&](int64_t begin, int64_t end) { multiply_columns(product, begin, end); });
  return out;
}

}  // namespace lockstep::nn
