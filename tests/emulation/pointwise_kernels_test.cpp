// Element-wise kernels: the bits of cuda_math.h, whoever is first, and nothing beyond their buffers.
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "emulation/launches.h"
#include "support/tensors.h"

namespace lockstep::emulation {
namespace {

using nn::cuda::Pair;
using testing::expect_close;

template <typename T>
class PointwiseKernels : public ::testing::Test {};
using Types = ::testing::Types<float, __nv_bfloat16>;
TYPED_TEST_SUITE(PointwiseKernels, Types);

TYPED_TEST(PointwiseKernels, GeluBackward) {
  using T = TypeParam;
  // The last are more than three blocks of one element, of eight elements a thread: a thread then has several.
  for (const int64_t n : {1, 20, 64, 257, 1504, 10312})
    for (const size_t away : {size_t{0}, sizeof(T)}) {
      const std::vector<T> dy = normals<T>("dy", n), h = normals<T>("h", n, 3);
      const Results results = in_every_order(
          [&](Buffers& buffers) {
            nn::cuda::launch_gelu_backward(nullptr, kElement<T>, buffers.input("dy", dy), buffers.inout("h", h), n);
          },
          away);
      std::vector<T> expected;
      for (size_t i = 0; i < h.size(); ++i) expected.push_back(rounded<T>(nn::cuda::gelu_backward(wide(dy[i]), wide(h[i]))));
      const std::vector<T> actual = values_of<T>(results, "h");
      expect_same(actual, expected, "dh");
      expect_close(tensor(actual, {n}), at::gelu_backward(tensor(dy, {n}), tensor(h, {n}), "tanh"), "dh", kBound<T>);
    }
}

TYPED_TEST(PointwiseKernels, SwiGlu) {
  using T = TypeParam;
  for (const int64_t rows : {1, 7})
    for (const int64_t size : {1, 5, 8, 33, 1040})
      for (const size_t away : {size_t{0}, sizeof(T)}) {
        const std::vector<T> h = normals<T>("h", rows * 2 * size, 2);
        const Results results = in_every_order(
            [&](Buffers& buffers) {
              T* const y = buffers.output<T>("y", static_cast<size_t>(rows * size));
              nn::cuda::launch_swiglu(nullptr, kElement<T>, buffers.input("h", h), y, rows, size);
            },
            away);
        std::vector<T> expected;
        for (int64_t i = 0; i < rows * size; ++i) {
          const T* gate = h.data() + i / size * 2 * size + i % size;
          expected.push_back(rounded<T>(nn::cuda::swiglu(wide(gate[0]), wide(gate[size]))));
        }
        const std::vector<T> actual = values_of<T>(results, "y");
        expect_same(actual, expected, "y");
        const at::Tensor both = tensor(h, {rows, 2, size});
        expect_close(tensor(actual, {rows, size}), at::silu(both.select(1, 0)).mul(both.select(1, 1)), "y", kBound<T>);
      }
}

TYPED_TEST(PointwiseKernels, SwiGluBackward) {
  using T = TypeParam;
  for (const int64_t rows : {1, 7})
    for (const int64_t size : {1, 5, 8, 33, 1040})
      for (const size_t away : {size_t{0}, sizeof(T)}) {
        const std::vector<T> h = normals<T>("h", rows * 2 * size, 2), dy = normals<T>("dy", rows * size);
        const Results results = in_every_order(
            [&](Buffers& buffers) {
              const T* const d = buffers.input("dy", dy);
              nn::cuda::launch_swiglu_backward(nullptr, kElement<T>, d, buffers.inout("h", h), rows, size);
            },
            away);
        std::vector<T> expected = h;
        for (int64_t i = 0; i < rows * size; ++i) {
          T* gate = expected.data() + i / size * 2 * size + i % size;
          const Pair both = nn::cuda::swiglu_backward(wide(dy[static_cast<size_t>(i)]), wide(gate[0]), wide(gate[size]));
          gate[0] = rounded<T>(both.first);
          gate[size] = rounded<T>(both.second);
        }
        const std::vector<T> actual = values_of<T>(results, "h");
        expect_same(actual, expected, "dh");
        const at::Tensor both = tensor(h, {rows, 2, size}), d = tensor(dy, {rows, size});
        const at::Tensor gate = both.select(1, 0), up = both.select(1, 1), dh = tensor(actual, {rows, 2, size});
        expect_close(dh.select(1, 0), at::silu_backward(at::mul(d, up), gate), "dgate", kBound<T>);
        expect_close(dh.select(1, 1), at::silu(gate).mul(d), "dup", kBound<T>);
      }
}

// As many elements at once as fit 16 bytes only where every buffer allows it.
TYPED_TEST(PointwiseKernels, OneOfTwoBuffersIsNotAligned) {
  using T = TypeParam;
  constexpr int64_t kRows = 3, kSize = 16, kAll = kRows * kSize;
  const std::vector<T> h = normals<T>("h", 2 * kAll), dy = normals<T>("dy", kAll), dy_of_all = normals<T>("dy", 2 * kAll);
  const auto results = [&](size_t first, size_t second) {
    return in_every_order([&](Buffers& buffers) {
      buffers.set_away(first);
      const T *const d = buffers.input("dy", dy), *const d_of_all = buffers.input("dy_of_all", dy_of_all);
      const T* const both = buffers.input("h", h);
      buffers.set_away(second);
      nn::cuda::launch_gelu_backward(nullptr, kElement<T>, d_of_all, buffers.inout("gelu", h), 2 * kAll);
      nn::cuda::launch_swiglu(nullptr, kElement<T>, both, buffers.output<T>("swiglu", kAll), kRows, kSize);
      nn::cuda::launch_swiglu_backward(nullptr, kElement<T>, d, buffers.inout("swiglu_backward", h), kRows, kSize);
    });
  };
  const Results expected = results(0, 0);
  EXPECT_TRUE(results(sizeof(T), 0) == expected);
  EXPECT_TRUE(results(0, sizeof(T)) == expected);
}

// Of a [batch, positions, heads, K] some heads, and the first `rotated` elements of each.
struct View {
  int64_t batch, positions, heads, k, first_head, some_heads, rotated;
};

TYPED_TEST(PointwiseKernels, RotationOfAView) {
  using T = TypeParam;
  for (const View& view : {View{1, 1, 1, 2, 0, 1, 2}, View{2, 3, 4, 10, 1, 2, 6}, View{2, 9, 6, 16, 2, 4, 16}, View{3, 19, 5, 66, 0, 5, 66}})
    for (const float direction : {1.0f, -1.0f}) {
      const int64_t half = view.rotated / 2;
      const std::vector<T> x = normals<T>("x", view.batch * view.positions * view.heads * view.k);
      const std::vector<T> cosine = normals<T>("cosine", view.positions * half), sine = normals<T>("sine", view.positions * half);
      const nn::cuda::RotaryShape shape{.batch = view.batch,
                                        .positions = view.positions,
                                        .heads = view.some_heads,
                                        .half = half,
                                        .batch_stride = view.positions * view.heads * view.k,
                                        .position_stride = view.heads * view.k,
                                        .head_stride = view.k};
      const int64_t first = view.first_head * view.k;
      const Results results = in_every_order([&](Buffers& buffers) {
        nn::cuda::launch_rotate(nullptr, kElement<T>, buffers.inout("x", x) + first, buffers.input("cosine", cosine),
                                buffers.input("sine", sine), shape, direction);
      });
      std::vector<T> expected = x;
      for (int64_t b = 0; b < view.batch; ++b)
        for (int64_t s = 0; s < view.positions; ++s)
          for (int64_t head = 0; head < view.some_heads; ++head)
            for (int64_t j = 0; j < half; ++j) {
              T* pair = expected.data() + first + b * shape.batch_stride + s * shape.position_stride + head * view.k + j;
              const auto angle = static_cast<size_t>(s * half + j);
              const Pair turned =
                  nn::cuda::rotate({wide(pair[0]), wide(pair[half])}, wide(cosine[angle]), direction * wide(sine[angle]));
              pair[0] = rounded<T>(turned.first);
              pair[half] = rounded<T>(turned.second);
            }
      expect_same(values_of<T>(results, "x"), expected, "x");
    }
}

// What LibTorch makes of it is cuda_kernels_test's; here that a turn and the turn back are nothing.
TYPED_TEST(PointwiseKernels, RotationIsUndoneByItsInverse) {
  using T = TypeParam;
  constexpr int64_t kPositions = 5, kHalf = 8;
  const std::vector<T> x = normals<T>("x", kPositions * 2 * kHalf);
  std::vector<T> cosine, sine;
  for (const T& angle : normals<T>("angle", kPositions * kHalf)) {
    cosine.push_back(rounded<T>(std::cos(wide(angle))));
    sine.push_back(rounded<T>(std::sin(wide(angle))));
  }
  const nn::cuda::RotaryShape shape{1, kPositions, 1, kHalf, kPositions * 2 * kHalf, 2 * kHalf, 2 * kHalf};
  const Results results = in_every_order([&](Buffers& buffers) {
    T* const turned = buffers.inout("x", x);
    const T *const c = buffers.input("cosine", cosine), *const s = buffers.input("sine", sine);
    for (const float direction : {1.0f, -1.0f}) nn::cuda::launch_rotate(nullptr, kElement<T>, turned, c, s, shape, direction);
  });
  const double bound = std::is_same_v<T, float> ? 1e-6 : 0.02;
  expect_close(tensor(values_of<T>(results, "x"), {kPositions * 2 * kHalf}), tensor(x, {kPositions * 2 * kHalf}), "x", bound);
}

TYPED_TEST(PointwiseKernels, NothingIsNothing) {
  using T = TypeParam;
  nn::cuda::launch_gelu_backward(nullptr, kElement<T>, nullptr, nullptr, 0);
  nn::cuda::launch_swiglu(nullptr, kElement<T>, nullptr, nullptr, 0, 8);
  nn::cuda::launch_swiglu_backward(nullptr, kElement<T>, nullptr, nullptr, 3, 0);
  nn::cuda::launch_rotate(nullptr, kElement<T>, nullptr, nullptr, nullptr, {}, 1);
}

}  // namespace
}  // namespace lockstep::emulation
