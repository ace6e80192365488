#include "lockstep/nn/norm_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

constexpr int64_t kRowsAtOnce = 16;   // of one piece of work
constexpr int64_t kWeightPieces = 16;  // partial sums of the weights' gradients

template <typename T>
struct Row {
  const T* x;
  T* branch;  // null: none
  const T* weight;
  const T* bias;  // null: RMSNorm
  T* y;
  float* mean;
  float* rstd;
  int64_t size;
  float eps;
  float added;  // to each weight
};

template <typename T>
LOCKSTEP_INLINE void forward_row(const Row<T>& row) {
  const T* x = row.x;
  Floats sum{};
  if (row.branch) {
    for (int64_t i = 0; i < row.size; i += kLanes) {
      Floats a{}, b{};
      vec::load(row.x + i, row.size - i, a);
      vec::load(row.branch + i, row.size - i, b);
      vec::store(row.branch + i, row.size - i, a + b);
    }
    x = row.branch;
  }
  const float scale = 1.0f / static_cast<float>(row.size);
  float mean = 0;
  if (row.bias) {
    for (int64_t i = 0; i < row.size; i += kLanes) {
      Floats a{};
      vec::load(x + i, row.size - i, a);
      sum += a;
    }
    mean = vec::sum(sum) * scale;
    sum = Floats{};
  }
  for (int64_t i = 0; i < row.size; i += kLanes) {
    Floats a = vec::splat(mean);  // lanes beyond the row add nothing
    vec::load(x + i, row.size - i, a);
    a -= mean;
    sum += a * a;
  }
  const float rstd = 1.0f / std::sqrt(vec::sum(sum) * scale + row.eps);
  for (int64_t i = 0; i < row.size; i += kLanes) {
    Floats a{}, w{}, b{};
    vec::load(x + i, row.size - i, a);
    vec::load(row.weight + i, row.size - i, w);
    w += row.added;
    if (row.bias) vec::load(row.bias + i, row.size - i, b);
    vec::store(row.y + i, row.size - i, (a - mean) * rstd * w + b);
  }
  if (row.mean) *row.mean = mean;
  *row.rstd = rstd;
}

template <typename T>
struct BackwardRow {
  const T* dy;
  const T* x;
  const T* residual;  // null: none
  const T* weight;
  T* dx;
  bool centered;
  float mean;
  float rstd;
  int64_t size;
  float added;  // to each weight
};

// With g = dy * weight and h = (x - mean) * rstd: dx = rstd * (g - mean(g) - h * mean(g * h)); RMSNorm without mean(g).
template <typename T>
LOCKSTEP_INLINE void backward_row(const BackwardRow<T>& row) {
  Floats sum{}, along{};
  for (int64_t i = 0; i < row.size; i += kLanes) {
    Floats d{}, a{}, w{};
    vec::load(row.dy + i, row.size - i, d);
    vec::load(row.x + i, row.size - i, a);
    vec::load(row.weight + i, row.size - i, w);
    const Floats g = d * (w + row.added);
    sum += g;
    along += g * (a - row.mean);
  }
  const float scale = 1.0f / static_cast<float>(row.size);
  const float mean_g = row.centered ? vec::sum(sum) * scale : 0.0f;
  const float mean_gh = vec::sum(along) * row.rstd * scale;
  for (int64_t i = 0; i < row.size; i += kLanes) {
    Floats d{}, a{}, w{}, r{};
    vec::load(row.dy + i, row.size - i, d);
    vec::load(row.x + i, row.size - i, a);
    vec::load(row.weight + i, row.size - i, w);
    if (row.residual) vec::load(row.residual + i, row.size - i, r);
    vec::store(row.dx + i, row.size - i, r + row.rstd * (d * (w + row.added) - mean_g - (a - row.mean) * row.rstd * mean_gh));
  }
}

// dweight += dy * (x - mean) * rstd, dbias += dy.
template <typename T>
LOCKSTEP_INLINE void weight_row(const BackwardRow<T>& row, float* dweight, float* dbias) {
  for (int64_t i = 0; i < row.size; i += kLanes) {
    const int64_t count = row.size - i;
    Floats d{}, a{}, w{}, b{};
    vec::load(row.dy + i, count, d);
    vec::load(row.x + i, count, a);
    vec::load(dweight + i, count, w);
    vec::store(dweight + i, count, w + d * ((a - row.mean) * row.rstd));
    if (!dbias) continue;
    vec::load(dbias + i, count, b);
    vec::store(dbias + i, count, b + d);
  }
}

using BFloat16 = c10::BFloat16;
LOCKSTEP_CLONES void forward_of(const Row<float>& row) { forward_row(row); }
LOCKSTEP_CLONES void forward_of(const Row<BFloat16>& row) { forward_row(row); }
LOCKSTEP_CLONES void backward_of(const BackwardRow<float>& row) { backward_row(row); }
LOCKSTEP_CLONES void backward_of(const BackwardRow<BFloat16>& row) { backward_row(row); }
LOCKSTEP_CLONES void weight_of(const BackwardRow<float>& row, float* dw, float* db) { weight_row(row, dw, db); }
LOCKSTEP_CLONES void weight_of(const BackwardRow<BFloat16>& row, float* dw, float* db) { weight_row(row, dw, db); }

template <typename Body>
void of_dtype(const at::Tensor& x, const Body& body) {
  LOCKSTEP_CHECK(x.is_contiguous() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16), "norm of ",
                 x.dtype());
  if (x.scalar_type() == at::kFloat)
    body(float{});
  else
    body(BFloat16{});
}

template <typename T>
const T* pointer(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}
template <typename T>
T* mutable_pointer(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
}

// Row `i` of x and dy, with its statistics.
template <typename T>
BackwardRow<T> row_of(const at::Tensor& dy, const at::Tensor& x, const NormStatistics& statistics, int64_t i) {
  const int64_t size = x.size(-1);
  const float* mean = pointer<float>(statistics.mean);
  return {.dy = dy.const_data_ptr<T>() + i * size,
          .x = x.const_data_ptr<T>() + i * size,
          .residual = nullptr,
          .weight = nullptr,
          .dx = nullptr,
          .centered = mean != nullptr,
          .mean = mean ? mean[i] : 0.0f,
          .rstd = statistics.rstd.const_data_ptr<float>()[i],
          .size = size,
          .added = 0};
}

float added_by(const NormWeights& weights) { return weights.plus_one ? 1.0f : 0.0f; }

}  // namespace

at::Tensor norm_cpu(const at::Tensor& x, const at::Tensor& branch, const NormWeights& weights,
                    NormStatistics& statistics) {
  const int64_t size = x.size(-1), rows = x.numel() / size;
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = 1;
  at::Tensor y = at::empty_like(x);
  statistics.rstd = at::empty(shape, at::kFloat);
  if (weights.bias.defined()) statistics.mean = at::empty(shape, at::kFloat);
  of_dtype(x, [&]<typename T>(T) {
    at::parallel_for(0, rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        forward_of({.x = x.const_data_ptr<T>() + i * size,
                    .branch = branch.defined() ? branch.data_ptr<T>() + i * size : nullptr,
                    .weight = pointer<T>(weights.weight),
                    .bias = pointer<T>(weights.bias),
                    .y = y.data_ptr<T>() + i * size,
                    .mean = weights.bias.defined() ? statistics.mean.data_ptr<float>() + i : nullptr,
                    .rstd = statistics.rstd.data_ptr<float>() + i,
                    .size = size,
                    .eps = static_cast<float>(weights.eps),
                    .added = added_by(weights)});
    });
  });
  return y;
}

at::Tensor norm_backward_cpu(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& residual,
                             const NormWeights& weights, const NormStatistics& statistics) {
  const int64_t size = x.size(-1), rows = x.numel() / size;
  LOCKSTEP_CHECK(dy.is_contiguous());
  at::Tensor dx = at::empty_like(x);
  of_dtype(x, [&]<typename T>(T) {
    at::parallel_for(0, rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        BackwardRow<T> row = row_of<T>(dy, x, statistics, i);
        row.residual = residual.defined() ? residual.const_data_ptr<T>() + i * size : nullptr;
        row.weight = weights.weight.const_data_ptr<T>();
        row.dx = dx.data_ptr<T>() + i * size;
        row.added = added_by(weights);
        backward_of(row);
      }
    });
  });
  return dx;
}

void norm_backward_weight_cpu(const at::Tensor& dy, const at::Tensor& x, const NormStatistics& statistics,
                              const NormWeights& grads) {
  const int64_t size = x.size(-1), rows = x.numel() / size;
  LOCKSTEP_CHECK(dy.is_contiguous());
  const int64_t pieces = std::min(kWeightPieces, rows);
  const at::Tensor partial = at::zeros({pieces, 2, size}, at::kFloat);
  of_dtype(x, [&]<typename T>(T) {
    at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        float* dweight = partial.data_ptr<float>() + piece * 2 * size;
        float* dbias = grads.bias.defined() ? dweight + size : nullptr;
        for (int64_t i = rows * piece / pieces; i < rows * (piece + 1) / pieces; ++i)
          weight_of(row_of<T>(dy, x, statistics, i), dweight, dbias);
      }
    });
  });
  const float* sums = partial.const_data_ptr<float>();
  float* dweight = mutable_pointer<float>(grads.weight);
  float* dbias = mutable_pointer<float>(grads.bias);
  for (int64_t piece = 0; piece < pieces; ++piece, sums += 2 * size) {
    for (int64_t i = 0; i < size; ++i) dweight[i] += sums[i];
    if (dbias)
      for (int64_t i = 0; i < size; ++i) dbias[i] += sums[size + i];
  }
}

}  // namespace lockstep::nn
