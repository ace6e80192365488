#include "lockstep/nn/row_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

template <typename T>
struct RowOf {
  const T* x;
  const T* dy;
  const T* weight;
  T* to;
  int64_t size;
  float added;  // to each weight
  float rstd;
  float along;  // of row_gradient
};

template <typename T>
LOCKSTEP_INLINE float squares(const RowOf<T>& row) {
  Floats sum{};
  for (int64_t i = 0; i < row.size; i += kLanes) {
    Floats x{};
    vec::load(row.x + i, row.size - i, x);
    sum += x * x;
  }
  return vec::sum(sum);
}

template <typename T>
LOCKSTEP_INLINE void normalise(const RowOf<T>& row) {
  for (int64_t i = 0; i < row.size; i += kLanes) {
    Floats x{}, w{};
    vec::load(row.x + i, row.size - i, x);
    vec::load(row.weight + i, row.size - i, w);
    vec::store(row.to + i, row.size - i, x * row.rstd * (w + row.added));
  }
}

template <typename T>
LOCKSTEP_INLINE float products(const RowOf<T>& row) {
  Floats sum{};
  for (int64_t i = 0; i < row.size; i += kLanes) {
    Floats x{}, d{}, w{};
    vec::load(row.x + i, row.size - i, x);
    vec::load(row.dy + i, row.size - i, d);
    vec::load(row.weight + i, row.size - i, w);
    sum += d * (w + row.added) * x;
  }
  return vec::sum(sum) * row.rstd;
}

template <typename T>
LOCKSTEP_INLINE void gradient(const RowOf<T>& row) {
  for (int64_t i = 0; i < row.size; i += kLanes) {
    Floats x{}, d{}, w{};
    vec::load(row.x + i, row.size - i, x);
    vec::load(row.dy + i, row.size - i, d);
    vec::load(row.weight + i, row.size - i, w);
    vec::store(row.to + i, row.size - i, row.rstd * (d * (w + row.added) - x * row.rstd * row.along));
  }
}

using BFloat16 = c10::BFloat16;
LOCKSTEP_CLONES float squares_of(const RowOf<float>& row) { return squares(row); }
LOCKSTEP_CLONES float squares_of(const RowOf<BFloat16>& row) { return squares(row); }
LOCKSTEP_CLONES void normalise_of(const RowOf<float>& row) { normalise(row); }
LOCKSTEP_CLONES void normalise_of(const RowOf<BFloat16>& row) { normalise(row); }
LOCKSTEP_CLONES float products_of(const RowOf<float>& row) { return products(row); }
LOCKSTEP_CLONES float products_of(const RowOf<BFloat16>& row) { return products(row); }
LOCKSTEP_CLONES void gradient_of(const RowOf<float>& row) { gradient(row); }
LOCKSTEP_CLONES void gradient_of(const RowOf<BFloat16>& row) { gradient(row); }

// What rows are made of; what is undefined plays no part.
struct Operands {
  at::Tensor x, dy, rstd, weight, to;
  bool plus_one = false;
};

template <typename T, typename Body>
void each_row(const Operands& of, const Body& body) {
  constexpr int64_t kRowsAtOnce = 16;
  const int64_t size = of.x.size(1);
  at::parallel_for(0, of.x.size(0), kRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      body(i, RowOf<T>{.x = of.x.const_data_ptr<T>() + i * size,
                       .dy = of.dy.defined() ? of.dy.const_data_ptr<T>() + i * size : nullptr,
                       .weight = of.weight.defined() ? of.weight.const_data_ptr<T>() : nullptr,
                       .to = of.to.defined() ? of.to.data_ptr<T>() + i * of.to.stride(0) : nullptr,
                       .size = size,
                       .added = of.plus_one ? 1.0f : 0.0f,
                       .rstd = of.rstd.defined() ? of.rstd.const_data_ptr<float>()[i] : 0.0f,
                       .along = 0});
  });
}

template <typename Body>
void for_rows(const Operands& of, const Body& body) {
  LOCKSTEP_CHECK(of.x.is_contiguous() && (!of.dy.defined() || of.dy.is_contiguous()) && (!of.to.defined() || of.to.stride(1) == 1), "rows ",
                 of.x.strides());
  if (of.x.scalar_type() == at::kFloat) return each_row<float>(of, body);
  LOCKSTEP_CHECK(of.x.scalar_type() == at::kBFloat16, "a norm in ", of.x.dtype());
  each_row<BFloat16>(of, body);
}

at::Tensor wide(const at::Tensor& x) { return x.to(at::kFloat); }

// On a device: fp32 [n].
at::Tensor factor(const NormedRows& rows) { return rows.plus_one ? wide(rows.weight) + 1 : wide(rows.weight); }

}  // namespace

void row_squares(const at::Tensor& x, const at::Tensor& numbers, int64_t column, double scale) {
  if (!x.is_cpu()) return void(numbers.select(1, column).copy_(wide(x).square().sum(1).mul_(scale)));
  float* const to = numbers.data_ptr<float>() + column;
  const int64_t columns = numbers.size(1);
  for_rows({.x = x, .dy = {}, .rstd = {}, .weight = {}, .to = {}},
           [&](int64_t i, const auto& row) { to[i * columns] = squares_of(row) * static_cast<float>(scale); });
}

void row_normalise(const NormedRows& rows, const at::Tensor& y) {
  if (!y.is_cpu()) return void(y.copy_(wide(rows.x).mul_(rows.rstd.unsqueeze(1)).mul_(factor(rows))));
  for_rows({.x = rows.x, .dy = {}, .rstd = rows.rstd, .weight = rows.weight, .to = y, .plus_one = rows.plus_one},
           [](int64_t, const auto& row) { normalise_of(row); });
}

void row_products(const NormedRows& rows, const at::Tensor& dy, const at::Tensor& numbers, int64_t column) {
  if (!dy.is_cpu()) return void(numbers.select(1, column).copy_((wide(dy) * factor(rows)).mul_(rows.x).sum(1).mul_(rows.rstd)));
  float* const to = numbers.data_ptr<float>() + column;
  const int64_t columns = numbers.size(1);
  for_rows({.x = rows.x, .dy = dy, .rstd = rows.rstd, .weight = rows.weight, .to = {}, .plus_one = rows.plus_one},
           [&](int64_t i, const auto& row) { to[i * columns] = products_of(row); });
}

void row_gradient(const NormedRows& rows, const at::Tensor& dy, const at::Tensor& numbers, int64_t column, double scale,
                  const at::Tensor& dx) {
  if (!dy.is_cpu()) {
    const at::Tensor along = (numbers.select(1, column) * rows.rstd).mul_(scale).unsqueeze(1);
    return void(dx.copy_((wide(dy) * factor(rows)).sub_(wide(rows.x) * along).mul_(rows.rstd.unsqueeze(1))));
  }
  const float* const from = numbers.const_data_ptr<float>() + column;
  const int64_t columns = numbers.size(1);
  for_rows({.x = rows.x, .dy = dy, .rstd = rows.rstd, .weight = rows.weight, .to = dx, .plus_one = rows.plus_one},
           [&](int64_t i, auto row) {
             row.along = from[i * columns] * static_cast<float>(scale);
             gradient_of(row);
           });
}

}  // namespace lockstep::nn
