#include "lockstep/nn/accumulate_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

constexpr int64_t kGrain = 16384;
constexpr int64_t kPieces = 16;  // of rows, each summed by itself first

template <typename T>
LOCKSTEP_INLINE void add(const T* from, float* to, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats x{}, sum{};
    vec::load(from + i, size - i, x);
    vec::load(to + i, size - i, sum);
    vec::store(to + i, size - i, sum + x);
  }
}

// `rows` rows of `size` at `from`. 64 columns at a time keep their sums in registers.
template <typename T>
LOCKSTEP_INLINE void sum_rows(const T* from, int64_t rows, int64_t size, float* to) {
  for (int64_t first = 0; first < size; first += 4 * kLanes) {
    Floats a{}, b{}, c{}, d{};
    const int64_t left = size - first;
    for (int64_t row = 0; row < rows; ++row) {
      const T* x = from + row * size + first;
      Floats part{};
      vec::load(x, left, part);
      a += part;
      if (left > kLanes) part = Floats{}, vec::load(x + kLanes, left - kLanes, part), b += part;
      if (left > 2 * kLanes) part = Floats{}, vec::load(x + 2 * kLanes, left - 2 * kLanes, part), c += part;
      if (left > 3 * kLanes) part = Floats{}, vec::load(x + 3 * kLanes, left - 3 * kLanes, part), d += part;
    }
    vec::store(to + first, left, a);
    if (left > kLanes) vec::store(to + first + kLanes, left - kLanes, b);
    if (left > 2 * kLanes) vec::store(to + first + 2 * kLanes, left - 2 * kLanes, c);
    if (left > 3 * kLanes) vec::store(to + first + 3 * kLanes, left - 3 * kLanes, d);
  }
}

using BFloat16 = c10::BFloat16;
LOCKSTEP_CLONES void add_of(const BFloat16* from, float* to, int64_t size) { add(from, to, size); }
LOCKSTEP_CLONES void add_of(const float* from, float* to, int64_t size) { add(from, to, size); }
LOCKSTEP_CLONES void sum_rows_of(const BFloat16* from, int64_t rows, int64_t size, float* to) {
  sum_rows(from, rows, size, to);
}
LOCKSTEP_CLONES void sum_rows_of(const float* from, int64_t rows, int64_t size, float* to) {
  sum_rows(from, rows, size, to);
}

template <typename T>
void sum_pieces(const at::Tensor& rows, const at::Tensor& partial) {
  const int64_t count = rows.size(0), size = rows.size(1), pieces = partial.size(0);
  at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = count * piece / pieces, last = count * (piece + 1) / pieces;
      sum_rows_of(rows.const_data_ptr<T>() + first * size, last - first, size, partial.data_ptr<float>() + piece * size);
    }
  });
}

}  // namespace

void add_cast_cpu(const at::Tensor& grad, const at::Tensor& product) {
  LOCKSTEP_CHECK(grad.is_contiguous() && product.is_contiguous());
  const BFloat16* from = product.const_data_ptr<BFloat16>();
  float* to = grad.data_ptr<float>();
  at::parallel_for(0, grad.numel(), kGrain,
                   [&](int64_t begin, int64_t end) { add_of(from + begin, to + begin, end - begin); });
}

void add_cast_part_cpu(const at::Tensor& grad, const at::Tensor& product) {
  LOCKSTEP_CHECK(grad.stride(1) == 1 && product.is_contiguous());
  const int64_t size = product.size(1), distance = grad.stride(0);
  const BFloat16* from = product.const_data_ptr<BFloat16>();
  float* to = grad.data_ptr<float>();
  for (int64_t row = 0; row < product.size(0); ++row) add_of(from + row * size, to + row * distance, size);
}

void add_row_sum_cpu(const at::Tensor& grad, const at::Tensor& rows) {
  LOCKSTEP_CHECK(grad.is_contiguous() && rows.is_contiguous());
  const int64_t size = rows.size(1), pieces = std::min(kPieces, rows.size(0));
  const at::Tensor partial = at::zeros({pieces, size}, at::kFloat);
  if (rows.scalar_type() == at::kFloat)
    sum_pieces<float>(rows, partial);
  else
    sum_pieces<BFloat16>(rows, partial);
  for (int64_t piece = 0; piece < pieces; ++piece)
    add_of(partial.const_data_ptr<float>() + piece * size, grad.data_ptr<float>(), size);
}

}  // namespace lockstep::nn
