#include "lockstep/nn/gated_norm_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

constexpr int64_t kRowsAtOnce = 16;    // of one piece of work
constexpr int64_t kWeightPieces = 16;  // partial sums of the weight's gradient

// One group of one row; pointers that a pass does not need are null.
template <typename T>
struct Part {
  int64_t size;
  const T *x, *z, *weight, *dout;
  float rstd, share;
  T *out, *dx, *dz;
  float* dweight;
};

template <typename T>
struct Gate {
  Floats y, x, silu, slope;  // slope: the derivative of silu
};
template <typename T>
LOCKSTEP_INLINE Gate<T> gate_of(const Part<T>& part, int64_t i) {
  Floats x{}, z{};
  vec::load(part.x + i, part.size - i, x);
  vec::load(part.z + i, part.size - i, z);
  const Floats open = 1.0f / (1.0f + vec::exp(-z)), silu = z * open;
  return {.y = x * silu, .x = x, .silu = silu, .slope = open + silu * (1.0f - open)};
}

// dout weight.
template <typename T>
LOCKSTEP_INLINE Floats gradient_of(const Part<T>& part, int64_t i) {
  Floats gradient{}, weight = vec::splat(1.0f);
  vec::load(part.dout + i, part.size - i, gradient);
  if (part.weight) vec::load(part.weight + i, part.size - i, weight);
  return gradient * weight;
}

template <typename T>
LOCKSTEP_INLINE float squares(const Part<T>& part) {
  Floats sum{};
  for (int64_t i = 0; i < part.size; i += kLanes) {
    const Floats y = gate_of(part, i).y;
    sum += y * y;
  }
  return vec::sum(sum);
}

template <typename T>
LOCKSTEP_INLINE float along(const Part<T>& part) {
  Floats sum{};
  for (int64_t i = 0; i < part.size; i += kLanes) sum += gradient_of(part, i) * gate_of(part, i).y;
  return vec::sum(sum);
}

template <typename T>
LOCKSTEP_INLINE void outputs(const Part<T>& part) {
  for (int64_t i = 0; i < part.size; i += kLanes) {
    Floats weight = vec::splat(1.0f);
    if (part.weight) vec::load(part.weight + i, part.size - i, weight);
    vec::store(part.out + i, part.size - i, gate_of(part, i).y * part.rstd * weight);
  }
}

template <typename T>
LOCKSTEP_INLINE void backward(const Part<T>& part) {
  for (int64_t i = 0; i < part.size; i += kLanes) {
    const Gate<T> gate = gate_of(part, i);
    const Floats dy = part.rstd * (gradient_of(part, i) - gate.y * part.share);
    vec::store(part.dx + i, part.size - i, dy * gate.silu);
    vec::store(part.dz + i, part.size - i, dy * gate.x * gate.slope);
  }
}

template <typename T>
LOCKSTEP_INLINE void weight_gradient(const Part<T>& part) {
  for (int64_t i = 0; i < part.size; i += kLanes) {
    Floats gradient{}, sum{};
    vec::load(part.dout + i, part.size - i, gradient);
    vec::load(part.dweight + i, part.size - i, sum);
    vec::store(part.dweight + i, part.size - i, sum + gradient * (gate_of(part, i).y * part.rstd));
  }
}

using BFloat16 = c10::BFloat16;
LOCKSTEP_CLONES float squares_of(const Part<float>& part) { return squares(part); }
LOCKSTEP_CLONES float squares_of(const Part<BFloat16>& part) { return squares(part); }
LOCKSTEP_CLONES float along_of(const Part<float>& part) { return along(part); }
LOCKSTEP_CLONES float along_of(const Part<BFloat16>& part) { return along(part); }
LOCKSTEP_CLONES void outputs_of(const Part<float>& part) { outputs(part); }
LOCKSTEP_CLONES void outputs_of(const Part<BFloat16>& part) { outputs(part); }
LOCKSTEP_CLONES void backward_of(const Part<float>& part) { backward(part); }
LOCKSTEP_CLONES void backward_of(const Part<BFloat16>& part) { backward(part); }
LOCKSTEP_CLONES void weight_of(const Part<float>& part) { weight_gradient(part); }
LOCKSTEP_CLONES void weight_of(const Part<BFloat16>& part) { weight_gradient(part); }

struct Operands {
  const GatedRows& rows;
  at::Tensor rstd{}, shares{}, dout{}, out{}, dx{}, dz{};
};

template <typename T>
const T* at_column(const at::Tensor& x, int64_t row, int64_t column) {
  return x.defined() ? x.const_data_ptr<T>() + row * x.stride(0) + column : nullptr;
}
template <typename T>
T* mutable_at_column(const at::Tensor& x, int64_t row, int64_t column) {
  return x.defined() ? x.data_ptr<T>() + row * x.stride(0) + column : nullptr;
}

// Group `group` of row `row`.
template <typename T>
Part<T> part_of(const Operands& o, int64_t row, int64_t group) {
  const int64_t groups = std::max<int64_t>(o.rows.groups, 1), size = o.rows.x.size(1) / groups, column = group * size;
  const auto number = [&](const at::Tensor& x, float none) { return x.defined() ? x.const_data_ptr<float>()[row * groups + group] : none; };
  return {.size = size,
          .x = at_column<T>(o.rows.x, row, column),
          .z = at_column<T>(o.rows.z, row, column),
          .weight = o.rows.weight.defined() ? o.rows.weight.const_data_ptr<T>() + column : nullptr,
          .dout = at_column<T>(o.dout, row, column),
          .rstd = number(o.rstd, 1.0f),
          .share = number(o.shares, 0.0f),
          .out = mutable_at_column<T>(o.out, row, column),
          .dx = mutable_at_column<T>(o.dx, row, column),
          .dz = mutable_at_column<T>(o.dz, row, column),
          .dweight = nullptr};
}

template <typename Body>
void of_dtype(const at::Tensor& x, const Body& body) {
  LOCKSTEP_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, "gated norm of ", x.dtype());
  if (x.scalar_type() == at::kFloat)
    body(float{});
  else
    body(BFloat16{});
}

// body(part, row, group) for each.
template <typename Body>
void for_each_part(const Operands& o, const Body& body) {
  const int64_t groups = std::max<int64_t>(o.rows.groups, 1);
  of_dtype(o.rows.x, [&]<typename T>(T) {
    at::parallel_for(0, o.rows.x.size(0), kRowsAtOnce, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t group = 0; group < groups; ++group) body(part_of<T>(o, row, group), row * groups + group);
    });
  });
}

}  // namespace

at::Tensor gated_squares_cpu(const GatedRows& rows) {
  at::Tensor sums = at::empty({rows.x.size(0), rows.groups}, at::kFloat);
  for_each_part({.rows = rows}, [&](const auto& part, int64_t i) { sums.data_ptr<float>()[i] = squares_of(part); });
  return sums;
}

at::Tensor gated_outputs_cpu(const GatedRows& rows, const at::Tensor& rstd) {
  at::Tensor out = at::empty(rows.x.sizes(), rows.x.options());
  for_each_part({.rows = rows, .rstd = rstd, .out = out}, [](const auto& part, int64_t) { outputs_of(part); });
  return out;
}

at::Tensor gated_along_cpu(const GatedRows& rows, const at::Tensor& dout) {
  at::Tensor sums = at::empty({rows.x.size(0), rows.groups}, at::kFloat);
  for_each_part({.rows = rows, .dout = dout}, [&](const auto& part, int64_t i) { sums.data_ptr<float>()[i] = along_of(part); });
  return sums;
}

at::Tensor gated_backward_cpu(const GatedRows& rows, const at::Tensor& rstd, const at::Tensor& shares, const at::Tensor& dout, const at::Tensor& dz) {
  at::Tensor dx = at::empty(rows.x.sizes(), rows.x.options());
  for_each_part({.rows = rows, .rstd = rstd, .shares = shares, .dout = dout, .dx = dx, .dz = dz},
                [](const auto& part, int64_t) { backward_of(part); });
  return dx;
}

void gated_backward_weight_cpu(const GatedRows& rows, const at::Tensor& rstd, const at::Tensor& dout, const at::Tensor& dweight) {
  const int64_t count = rows.x.size(0), size = rows.x.size(1), pieces = std::min(kWeightPieces, count);
  const at::Tensor partial = at::zeros({pieces, size}, at::kFloat);
  const Operands operands{.rows = rows, .rstd = rstd, .dout = dout};
  of_dtype(rows.x, [&]<typename T>(T) {
    at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        for (int64_t row = count * piece / pieces; row < count * (piece + 1) / pieces; ++row) {
          for (int64_t group = 0; group < rows.groups; ++group) {
            Part<T> part = part_of<T>(operands, row, group);
            part.dweight = partial.data_ptr<float>() + piece * size + group * part.size;
            weight_of(part);
          }
        }
      }
    });
  });
  for (int64_t piece = 0; piece < pieces; ++piece)
    for (int64_t i = 0; i < size; ++i) dweight.data_ptr<float>()[i] += partial.const_data_ptr<float>()[piece * size + i];
}

}  // namespace lockstep::nn
