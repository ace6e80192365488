#include "lockstep/nn/gemm_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

struct Product {
  const float* x;       // [rows, depth]
  const float* weight;  // [columns, depth]
  const float* bias;    // [columns] or null
  float* out;           // [rows, columns]
  int64_t rows, columns, depth;
};

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

// Every sum has one accumulator of sixteen lanes that runs down K, whatever the size of the tile.
template <int kRows, int kColumns>
LOCKSTEP_INLINE void tile(const Product& p, int64_t row, int64_t column) {
  const float* const x = p.x + row * p.depth;
  const float* const w = p.weight + column * p.depth;
  Floats sums[kRows][kColumns]{};
  int64_t k = 0;
  for (; k + kLanes <= p.depth; k += kLanes) {
    Floats b[kColumns];
    for (int j = 0; j < kColumns; ++j) std::memcpy(&b[j], w + j * p.depth + k, sizeof b[j]);
    for (int i = 0; i < kRows; ++i) {
      Floats a;
      std::memcpy(&a, x + i * p.depth + k, sizeof a);
      for (int j = 0; j < kColumns; ++j) sums[i][j] += a * b[j];
    }
  }
  if (k < p.depth) {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        Floats a{}, b{};
        vec::load(x + i * p.depth + k, p.depth - k, a);
        vec::load(w + j * p.depth + k, p.depth - k, b);
        sums[i][j] += a * b;
      }
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kColumns; ++j)
      p.out[(row + i) * p.columns + column + j] = sum_pairs(sums[i][j]) + (p.bias ? p.bias[column + j] : 0.0f);
}

template <int kColumns>
LOCKSTEP_INLINE void all_rows(const Product& p, int64_t column) {
  int64_t row = 0;
  for (; row + 4 <= p.rows; row += 4) tile<4, kColumns>(p, row, column);
  for (; row < p.rows; ++row) tile<1, kColumns>(p, row, column);
}

// Columns [begin, end): rows of the weight.
LOCKSTEP_CLONES void multiply_columns(const Product& p, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + 4 <= end; column += 4) all_rows<4>(p, column);
  for (; column < end; ++column) all_rows<1>(p, column);
}

}  // namespace

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
