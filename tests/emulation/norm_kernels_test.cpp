// LayerNorm's and RMSNorm's kernels: sums in the order that they promise, against a plain loop and LibTorch.
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <torch/csrc/autograd/autograd.h>

#include "emulation/launches.h"
#include "support/tensors.h"

namespace lockstep::emulation {
namespace {

using nn::cuda::Pair;
using testing::expect_close;

constexpr float kEps = 1e-5f;

struct Shape {
  int64_t rows, size;
};
struct Case {
  int64_t rows, size;
  bool layer, residual;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.rows << " x " << c.size << (c.layer ? " layer" : " rms") << (c.residual ? " with residual" : "");
}
// Seven rows are more than there are blocks.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [rows, size] : {Shape{1, 1}, Shape{2, 20}, Shape{7, 33}, Shape{2, 257}, Shape{3, 1000}})
    for (const bool layer : {true, false})
      for (const bool residual : {true, false}) all.push_back({rows, size, layer, residual});
  return all;
}

float add(float a, float b) { return a + b; }
Pair add_pairs(Pair a, Pair b) { return {a.first + b.first, a.second + b.second}; }

// f(i) over a row by the threads of a block.
template <typename V, typename Join, typename Term>
V row_sum(int64_t size, V empty, const Join& join, const Term& term) {
  std::vector<V> of_thread(kThreads, empty);
  for (int64_t i = 0; i < size; ++i) {
    V& sum = of_thread[static_cast<size_t>(i) % kThreads];
    sum = join(sum, term(i));
  }
  return block_sum(of_thread, empty, join);
}

template <typename T>
struct Forward {
  std::vector<T> sum, y;
  std::vector<float> mean, rstd;
};

template <typename T>
struct Inputs {
  explicit Inputs(const Case& c)
      : x(normals<T>("x", c.rows * c.size)),
        residual(normals<T>("residual", c.rows * c.size)),
        weight(normals<T>("weight", c.size)),
        bias(normals<T>("bias", c.size)),
        dy(normals<T>("dy", c.rows * c.size)) {}
  std::vector<T> x, residual, weight, bias, dy;
};

template <typename T>
Forward<T> plain_forward(const Case& c, const Inputs<T>& in) {
  Forward<T> out{.sum = in.x, .y = in.x, .mean = {}, .rstd = {}};
  const auto count = static_cast<float>(c.size);
  for (int64_t row = 0; row < c.rows; ++row) {
    const auto at = [&](int64_t i) { return static_cast<size_t>(row * c.size + i); };
    if (c.residual)
      for (int64_t i = 0; i < c.size; ++i) out.sum[at(i)] = rounded<T>(wide(in.x[at(i)]) + wide(in.residual[at(i)]));
    const auto x = [&](int64_t i) { return wide(out.sum[at(i)]); };
    const float mean = c.layer ? row_sum(c.size, 0.0f, add, x) / count : 0.0f;
    const float squares = row_sum(c.size, 0.0f, add, [&](int64_t i) { return (x(i) - mean) * (x(i) - mean); });
    const float rstd = 1.0f / std::sqrt(squares / count + kEps);
    if (c.layer) out.mean.push_back(mean);
    out.rstd.push_back(rstd);
    for (int64_t i = 0; i < c.size; ++i) {
      const auto column = static_cast<size_t>(i);
      const float scaled = (x(i) - mean) * rstd * wide(in.weight[column]);
      out.y[at(i)] = rounded<T>(c.layer ? scaled + wide(in.bias[column]) : scaled);
    }
  }
  return out;
}

template <typename T>
at::Tensor norm_of(const Case& c, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return c.layer ? at::layer_norm(x, {c.size}, weight, bias, kEps) : at::rms_norm(x, {c.size}, weight, kEps);
}

template <typename T>
class NormKernels : public ::testing::Test {};
using Types = ::testing::Types<float, __nv_bfloat16>;
TYPED_TEST_SUITE(NormKernels, Types);

TYPED_TEST(NormKernels, Forward) {
  using T = TypeParam;
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Inputs<T> in(c);
    const auto rows = static_cast<size_t>(c.rows), count = in.x.size();
    const Results results = in_every_order([&](Buffers& buffers) {
      nn::cuda::launch_norm(nullptr, kElement<T>,
                            {.x = buffers.input("x", in.x),
                             .residual = c.residual ? buffers.input("residual", in.residual) : nullptr,
                             .sum = c.residual ? buffers.template output<T>("sum", count) : nullptr,
                             .weight = buffers.input("weight", in.weight),
                             .bias = c.layer ? buffers.input("bias", in.bias) : nullptr,
                             .y = buffers.template output<T>("y", count),
                             .mean = c.layer ? buffers.template output<float>("mean", rows) : nullptr,
                             .rstd = buffers.template output<float>("rstd", rows),
                             .rows = c.rows,
                             .size = c.size,
                             .eps = kEps});
    });
    const Forward<T> expected = plain_forward(c, in);
    if (c.residual) expect_same(values_of<T>(results, "sum"), expected.sum, "sum");
    if (c.layer) expect_same(values_of<float>(results, "mean"), expected.mean, "mean");
    expect_same(values_of<float>(results, "rstd"), expected.rstd, "rstd");
    const std::vector<T> y = values_of<T>(results, "y");
    expect_same(y, expected.y, "y");
    const at::Tensor sum = tensor(expected.sum, {c.rows, c.size});
    expect_close(tensor(y, {c.rows, c.size}), norm_of<T>(c, sum, tensor(in.weight, {c.size}), tensor(in.bias, {c.size})),
                 "y", kBound<T>);
  }
}

template <typename T>
std::vector<T> plain_backward(const Case& c, const Inputs<T>& in, const Forward<T>& forward) {
  std::vector<T> dx = in.dy;
  const auto count = static_cast<float>(c.size);
  for (int64_t row = 0; row < c.rows; ++row) {
    const auto at = [&](int64_t i) { return static_cast<size_t>(row * c.size + i); };
    const float mean = c.layer ? forward.mean[static_cast<size_t>(row)] : 0.0f;
    const float rstd = forward.rstd[static_cast<size_t>(row)];
    const auto g = [&](int64_t i) { return wide(in.dy[at(i)]) * wide(in.weight[static_cast<size_t>(i)]); };
    const Pair sums = row_sum(c.size, Pair{0, 0}, add_pairs, [&](int64_t i) {
      return Pair{g(i), g(i) * (wide(forward.sum[at(i)]) - mean) * rstd};
    });
    for (int64_t i = 0; i < c.size; ++i) {
      const float xhat = (wide(forward.sum[at(i)]) - mean) * rstd;
      const float gradient =
          nn::cuda::norm_backward(g(i), xhat, rstd, c.layer ? sums.first / count : 0.0f, sums.second / count);
      dx[at(i)] = rounded<T>(c.residual ? gradient + wide(in.residual[at(i)]) : gradient);
    }
  }
  return dx;
}

// By autograd, in fp32; `residual` stands for what came by the way around the norm.
template <typename T>
at::Tensor autograd_backward(const Case& c, const Inputs<T>& in, const Forward<T>& forward) {
  const at::Tensor x = testing::leaf(tensor(forward.sum, {c.rows, c.size}));
  norm_of<T>(c, x, tensor(in.weight, {c.size}), tensor(in.bias, {c.size})).backward(tensor(in.dy, {c.rows, c.size}));
  return c.residual ? x.grad().add(tensor(in.residual, {c.rows, c.size})) : x.grad();
}

TYPED_TEST(NormKernels, Backward) {
  using T = TypeParam;
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Inputs<T> in(c);
    const Forward<T> forward = plain_forward(c, in);
    // dx may be a buffer of its own, that of dy, or that of what came around.
    for (const std::string place : {"dx", "dy", "residual"}) {
      if (place == "residual" && !c.residual) continue;
      const Results results = in_every_order([&](Buffers& buffers) {
        T* const dx = place == "dx"   ? buffers.template output<T>("dx", in.dy.size())
                      : place == "dy" ? buffers.inout("dy", in.dy)
                                      : buffers.inout("residual", in.residual);
        const T* around = nullptr;
        if (c.residual) around = place == "residual" ? dx : buffers.input("residual", in.residual);
        nn::cuda::launch_norm_backward(nullptr, kElement<T>,
                                       {.dy = place == "dy" ? dx : buffers.input("dy", in.dy),
                                        .x = buffers.input("x", forward.sum),
                                        .weight = buffers.input("weight", in.weight),
                                        .mean = c.layer ? buffers.input("mean", forward.mean) : nullptr,
                                        .rstd = buffers.input("rstd", forward.rstd),
                                        .dresidual = around,
                                        .dx = dx,
                                        .rows = c.rows,
                                        .size = c.size});
      });
      const std::vector<T> dx = values_of<T>(results, place);
      expect_same(dx, plain_backward(c, in, forward), "dx in the place of " + place);
      // A row of one element has no gradient: what is left is rounding.
      if (c.size > 1) expect_close(tensor(dx, {c.rows, c.size}), autograd_backward(c, in, forward), "dx", 2 * kBound<T>);
    }
  }
}

// dy * xhat and dy over the rows: 64 stripes of rows, of which a thread has every eighth.
template <typename T>
Pair plain_column(const Case& c, const Inputs<T>& in, const Forward<T>& forward, int64_t column, bool with_x) {
  Pair total{0, 0};
  const int64_t each = (c.rows + nn::cuda::kStripes - 1) / nn::cuda::kStripes;
  for (int64_t stripe = 0; stripe < nn::cuda::kStripes; ++stripe) {
    Pair of_stripe{0, 0};
    for (int64_t thread = 0; thread < 8; ++thread) {
      Pair of_thread{0, 0};
      for (int64_t row = stripe * each + thread; row < std::min((stripe + 1) * each, c.rows); row += 8) {
        const auto at = static_cast<size_t>(row * c.size + column), of_row = static_cast<size_t>(row);
        const float dy = wide(in.dy[at]);
        of_thread.second += dy;
        if (with_x) of_thread.first += dy * (wide(forward.sum[at]) - (c.layer ? forward.mean[of_row] : 0.0f)) * forward.rstd[of_row];
      }
      of_stripe = thread == 0 ? of_thread : add_pairs(of_stripe, of_thread);
    }
    total = add_pairs(total, of_stripe);
  }
  return total;
}

TYPED_TEST(NormKernels, GradientsOfWeights) {
  using T = TypeParam;
  // The last has more columns than three blocks have threads.
  for (const Shape& shape : {Shape{1, 1}, Shape{5, 31}, Shape{64, 32}, Shape{131, 33}, Shape{600, 70}, Shape{2, 800}})
    for (const bool layer : {true, false})
      for (const bool bias_alone : {false, true}) {
        const int64_t rows = shape.rows, size = shape.size;
        if (size == 800 && (!layer || bias_alone)) continue;
        const Case c{.rows = rows, .size = size, .layer = layer, .residual = false};
        SCOPED_TRACE(::testing::PrintToString(c));
        const Inputs<T> in(c);
        const Forward<T> forward = plain_forward(c, in);
        const std::vector<float> before = normals<float>("before", size);
        const bool with_bias = layer || bias_alone;
        const Results results = in_every_order([&](Buffers& buffers) {
          nn::cuda::launch_norm_weight_backward(
              nullptr, kElement<T>,
              {.dy = buffers.input("dy", in.dy),
               .x = bias_alone ? nullptr : buffers.input("x", forward.sum),
               .mean = layer ? buffers.input("mean", forward.mean) : nullptr,
               .rstd = bias_alone ? nullptr : buffers.input("rstd", forward.rstd),
               .partial = buffers.template output<float>("partial", static_cast<size_t>(2 * nn::cuda::kStripes * size)),
               .weight_grad = bias_alone ? nullptr : buffers.inout("weight_grad", before),
               .bias_grad = with_bias ? buffers.inout("bias_grad", before) : nullptr,
               .rows = rows,
               .size = size});
        });
        std::vector<float> weight_grad = before, bias_grad = before;
        for (int64_t column = 0; column < size; ++column) {
          const Pair sums = plain_column(c, in, forward, column, !bias_alone);
          weight_grad[static_cast<size_t>(column)] += sums.first;
          bias_grad[static_cast<size_t>(column)] += sums.second;
        }
        if (!bias_alone) expect_same(values_of<float>(results, "weight_grad"), weight_grad, "weight_grad");
        if (with_bias) {
          expect_same(values_of<float>(results, "bias_grad"), bias_grad, "bias_grad");
          expect_close(tensor(values_of<float>(results, "bias_grad"), {size}),
                       tensor(in.dy, {rows, size}).sum(0).add(tensor(before, {size})), "bias_grad", 1e-5);
        }
      }
}

TYPED_TEST(NormKernels, GradientsOfWeightsAreAutograds) {
  using T = TypeParam;
  const Case c{.rows = 131, .size = 70, .layer = true, .residual = false};
  const Inputs<T> in(c);
  const Forward<T> forward = plain_forward(c, in);
  Buffers buffers(Guarded::Options{});
  float* const weight_grad = buffers.inout("weight_grad", std::vector<float>(70));
  float* const bias_grad = buffers.inout("bias_grad", std::vector<float>(70));
  nn::cuda::launch_norm_weight_backward(nullptr, kElement<T>,
                                        {.dy = buffers.input("dy", in.dy),
                                         .x = buffers.input("x", in.x),
                                         .mean = buffers.input("mean", forward.mean),
                                         .rstd = buffers.input("rstd", forward.rstd),
                                         .partial = buffers.output<float>("partial", 2 * nn::cuda::kStripes * 70),
                                         .weight_grad = weight_grad,
                                         .bias_grad = bias_grad,
                                         .rows = c.rows,
                                         .size = c.size});
  const at::Tensor weight = testing::leaf(tensor(in.weight, {70})), bias = testing::leaf(tensor(in.bias, {70}));
  at::layer_norm(tensor(in.x, {131, 70}), {70}, weight, bias, kEps).backward(tensor(in.dy, {131, 70}));
  const Results results = buffers.results();
  expect_close(tensor(values_of<float>(results, "weight_grad"), {70}), weight.grad(), "weight_grad", 1e-5);
  expect_close(tensor(values_of<float>(results, "bias_grad"), {70}), bias.grad(), "bias_grad", 1e-5);
}

TYPED_TEST(NormKernels, NothingIsNothing) {
  using T = TypeParam;
  nn::cuda::launch_norm(nullptr, kElement<T>, {});
  nn::cuda::launch_norm_backward(nullptr, kElement<T>, {});
  nn::cuda::launch_norm_weight_backward(nullptr, kElement<T>, {});
}

}  // namespace
}  // namespace lockstep::emulation
