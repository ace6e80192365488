#include "lockstep/nn/permute.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_index_put_impl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <span>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/device_rows.h"
#include "lockstep/nn/upload.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;
using BFloat16 = c10::BFloat16;

constexpr int64_t kGrain = 16384;  // elements worth a thread

// What both kernels read of a Routing.
struct Order {
  const int64_t* rows;
  const int64_t* first;
  const int64_t* sent;
  const float* weights;  // null: all 1
  int64_t size;          // D
};

template <typename T>
LOCKSTEP_INLINE void sum_row(const T* sent, const Order& order, int64_t row, const float* base, T* out) {
  const int64_t begin = order.first[row], end = order.first[row + 1];
  for (int64_t i = 0; i < order.size; i += kLanes) {
    const int64_t left = order.size - i;
    Floats sum{};
    if (base) vec::load(base + i, left, sum);
    for (int64_t j = begin; j < end; ++j) {
      const int64_t place = order.sent[j];
      Floats x{};
      vec::load(sent + place * order.size + i, left, x);
      sum += order.weights ? order.weights[place] * x : x;
    }
    vec::store(out + i, left, sum);
  }
}

template <typename T>
LOCKSTEP_INLINE void weigh_rows(const T* dy, const T* outputs, const Order& order, int64_t begin, int64_t end, T* gradient,
                                float* dweights) {
  for (int64_t place = begin; place < end; ++place) {
    const T* from = dy + order.rows[place] * order.size;
    const int64_t offset = place * order.size;
    const float weight = order.weights[place];
    Floats dot{};
    for (int64_t i = 0; i < order.size; i += kLanes) {
      const int64_t left = order.size - i;
      Floats d{}, y{};
      vec::load(from + i, left, d);
      vec::load(outputs + offset + i, left, y);
      dot += d * y;
      vec::store(gradient + offset + i, left, weight * d);
    }
    dweights[place] = vec::sum(dot);
  }
}

template <typename T>
struct Sum {
  const T* sent;
  const float* base;  // or null
  T* out;
};

template <typename T>
LOCKSTEP_INLINE void sum_all(const Sum<T>& sum, const Order& order, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    sum_row(sum.sent, order, row, sum.base ? sum.base + row * order.size : nullptr, sum.out + row * order.size);
}

LOCKSTEP_CLONES void sum_of(const Sum<float>& sum, const Order& order, int64_t begin, int64_t end) {
  sum_all(sum, order, begin, end);
}
LOCKSTEP_CLONES void sum_of(const Sum<BFloat16>& sum, const Order& order, int64_t begin, int64_t end) {
  sum_all(sum, order, begin, end);
}
LOCKSTEP_CLONES void weigh_of(const float* dy, const float* outputs, const Order& order, int64_t begin, int64_t end,
                              float* gradient, float* dweights) {
  weigh_rows(dy, outputs, order, begin, end, gradient, dweights);
}
LOCKSTEP_CLONES void weigh_of(const BFloat16* dy, const BFloat16* outputs, const Order& order, int64_t begin, int64_t end,
                              BFloat16* gradient, float* dweights) {
  weigh_rows(dy, outputs, order, begin, end, gradient, dweights);
}

Order order_of(const Routing& routing, bool weighted, int64_t size) {
  return {.rows = routing.rows.data(),
          .first = routing.first.data(),
          .sent = routing.sent.data(),
          .weights = weighted ? routing.weights.data() : nullptr,
          .size = size};
}

int64_t grain_of(int64_t size) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, size)); }

// A host vector where `like` is. On the CPU the vector's own memory.
template <typename T>
at::Tensor on_device(const std::vector<T>& values, at::ScalarType type, const at::Tensor& like) {
  if (!like.is_cpu()) return upload(std::span<const T>(values), like.device());
  return at::from_blob(const_cast<T*>(values.data()), {static_cast<int64_t>(values.size())}, at::TensorOptions(type));
}

at::Tensor rows_on_device(const Routing& routing, const at::Tensor& like) { return on_device(routing.rows, at::kLong, like); }

at::Tensor weights_on_device(const Routing& routing, const at::Tensor& like) {
  return on_device(routing.weights, at::kFloat, like).unsqueeze(1);
}

template <typename T>
void sum_rows_cpu(const at::Tensor& sent, const at::Tensor& base, const Order& order, const at::Tensor& out) {
  const Sum<T> sum{.sent = sent.const_data_ptr<T>(),
                   .base = base.defined() ? base.const_data_ptr<float>() : nullptr,
                   .out = out.data_ptr<T>()};
  at::parallel_for(0, out.size(0), grain_of(order.size),
                   [&](int64_t begin, int64_t end) { sum_of(sum, order, begin, end); });
}

at::Tensor sum_rows_gpu(const at::Tensor& sent, const Routing& routing, bool weighted, const at::Tensor& base) {
  at::Tensor sum = base.defined() ? base.clone()
                                  : at::zeros({routing.own_rows(), sent.size(1)}, sent.options().dtype(at::kFloat));
  at::Tensor values = sent.to(at::kFloat);
  if (weighted) values = values.mul(weights_on_device(routing, sent));
  at::_index_put_impl_(sum, {rows_on_device(routing, sent)}, values, /*accumulate=*/true, /*unsafe=*/true);
  return sum.to(sent.scalar_type());
}

}  // namespace

at::Tensor permute_rows(const at::Tensor& x, const Routing& routing) {
  if (routing.on_device) return repeat_rows(x, *routing.on_device);
  if (routing.sent_rows() == 0) return at::empty({0, x.size(1)}, x.options());
  return at::index_select(x, 0, rows_on_device(routing, x));
}

at::Tensor sum_rows(const at::Tensor& sent, const Routing& routing, bool weighted, const at::Tensor& base) {
  if (routing.on_device) return sum_repeated(sent, *routing.on_device, weighted, base);
  LOCKSTEP_CHECK_EQ(sent.size(0), routing.sent_rows(), "rows that were sent");
  if (!sent.is_cpu()) return sum_rows_gpu(sent, routing, weighted, base);
  LOCKSTEP_CHECK(sent.is_contiguous() && (!base.defined() || base.is_contiguous()));
  at::Tensor out = at::empty({routing.own_rows(), sent.size(1)}, sent.options());
  const Order order = order_of(routing, weighted, sent.size(1));
  if (sent.scalar_type() == at::kFloat)
    sum_rows_cpu<float>(sent, base, order, out);
  else
    sum_rows_cpu<BFloat16>(sent, base, order, out);
  return out;
}

WeightedGradients sum_rows_backward(const at::Tensor& dy, const at::Tensor& outputs, const Routing& routing) {
  if (routing.on_device) return sum_repeated_backward(dy, outputs, *routing.on_device);
  if (!dy.is_cpu()) {
    const at::Tensor sent = permute_rows(dy, routing).to(at::kFloat);
    return {.outputs = sent.mul(weights_on_device(routing, dy)).to(dy.scalar_type()),
            .weights = sent.mul(outputs.to(at::kFloat)).sum(1)};
  }
  LOCKSTEP_CHECK(dy.is_contiguous() && outputs.is_contiguous());
  WeightedGradients gradients{.outputs = at::empty_like(outputs),
                              .weights = at::empty({outputs.size(0)}, outputs.options().dtype(at::kFloat))};
  const Order order = order_of(routing, /*weighted=*/true, dy.size(1));
  const auto run = [&]<typename T>(T) {
    const T* const from = dy.const_data_ptr<T>();
    const T* const kept = outputs.const_data_ptr<T>();
    T* const to = gradients.outputs.data_ptr<T>();
    float* const dweights = gradients.weights.data_ptr<float>();
    at::parallel_for(0, outputs.size(0), grain_of(order.size),
                     [&](int64_t begin, int64_t end) { weigh_of(from, kept, order, begin, end, to, dweights); });
  };
  if (dy.scalar_type() == at::kFloat)
    run(float{});
  else
    run(BFloat16{});
  return gradients;
}

}  // namespace lockstep::nn
