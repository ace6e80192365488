// Softmax cross-entropy of rows of logits: one pass for maximum and sum together, one that writes the gradient.
#include "lockstep/nn/cuda/device.cuh"

namespace lockstep::nn::cuda {
namespace {

constexpr int kRowThreads = 512;

struct Merge {
  __device__ SoftmaxSum operator()(SoftmaxSum a, SoftmaxSum b) const { return merge(a, b); }
};

template <typename T, int N>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_kernel(T* logits, const int64_t* targets, float* losses, int64_t rows, int64_t size) {
  const SoftmaxSum empty{-INFINITY, 0.0f};
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    T* x = logits + row * size;
    const int64_t target = targets[row];
    if (target == kIgnored) {
      for (int64_t i = threadIdx.x; i < size; i += blockDim.x) x[i] = narrow<T>(0.0f);
      if (threadIdx.x == 0) losses[row] = 0.0f;
      continue;
    }
    const bool known = target >= 0 && target < size;
    SoftmaxSum sum = empty;
    for (int64_t i = threadIdx.x; i < size / N; i += blockDim.x) {
      const Pack<T, N> values = load<T, N>(x, i);
      float wide[N];
      for (int j = 0; j < N; ++j) wide[j] = widen(values.at[j]);
      sum = include(sum, wide, N);
    }
    sum = over_block(sum, empty, Merge{});
    const float of_target = known ? widen(x[target]) : NAN;
    __syncthreads();  // x[target] is read before it is written
    for (int64_t i = threadIdx.x; i < size / N; i += blockDim.x) {
      Pack<T, N> values = load<T, N>(x, i);
      for (int j = 0; j < N; ++j)
        values.at[j] = narrow<T>(softmax(widen(values.at[j]), sum) - (i * N + j == target ? 1.0f : 0.0f));
      store<T, N>(x, i, values);
    }
    if (threadIdx.x == 0) losses[row] = cross_entropy(of_target, sum);
  }
}

}  // namespace

void launch_cross_entropy(cudaStream_t stream, Element type, void* logits, const int64_t* targets, float* losses,
                          int64_t rows, int64_t size) {
  if (rows * size == 0) return;
  with_type(type, divides(type, size) && aligned(logits), [&](auto t, auto width) {
    using T = decltype(t);
    launch("cross_entropy", {stream, at_most_blocks(rows), kRowThreads}, cross_entropy_kernel<T, decltype(width)::value>,
           static_cast<T*>(logits), targets, losses, rows, size);
  });
}

}  // namespace lockstep::nn::cuda
