// GELU's and SwiGLU's derivatives, and the rotation of heads.
#include "lockstep/nn/cuda/device.cuh"

namespace lockstep::nn::cuda {
namespace {

template <typename T, int N>
__global__ void gelu_backward_kernel(const T* dy, T* h, int64_t packs) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs; i += stride) {
    const Pack<T, N> d = load<T, N>(dy, i);
    Pack<T, N> x = load<T, N>(h, i);
    for (int j = 0; j < N; ++j) x.at[j] = narrow<T>(gelu_backward(widen(d.at[j]), widen(x.at[j])));
    store<T, N>(h, i, x);
  }
}

// `packs` of y; a row has `width` of them.
template <typename T, int N>
__global__ void swiglu_kernel(const T* h, T* y, int64_t packs, int64_t width) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs; i += stride) {
    const int64_t gate_at = i / width * 2 * width + i % width;
    const Pack<T, N> gate = load<T, N>(h, gate_at);
    const Pack<T, N> up = load<T, N>(h, gate_at + width);
    Pack<T, N> out;
    for (int j = 0; j < N; ++j) out.at[j] = narrow<T>(swiglu(widen(gate.at[j]), widen(up.at[j])));
    store<T, N>(y, i, out);
  }
}

template <typename T, int N>
__global__ void swiglu_backward_kernel(const T* dy, T* h, int64_t packs, int64_t width) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs; i += stride) {
    const int64_t gate_at = i / width * 2 * width + i % width;
    const Pack<T, N> d = load<T, N>(dy, i);
    Pack<T, N> gate = load<T, N>(h, gate_at);
    Pack<T, N> up = load<T, N>(h, gate_at + width);
    for (int j = 0; j < N; ++j) {
      const Pair gradient = swiglu_backward(widen(d.at[j]), widen(gate.at[j]), widen(up.at[j]));
      gate.at[j] = narrow<T>(gradient.first);
      up.at[j] = narrow<T>(gradient.second);
    }
    store<T, N>(h, gate_at, gate);
    store<T, N>(h, gate_at + width, up);
  }
}

// A thread turns one pair; neighbours in a head are neighbours in a warp.
template <typename T>
__global__ void rotate_kernel(T* x, const T* cosine, const T* sine, RotaryShape shape, int64_t pairs, float direction) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < pairs; i += stride) {
    const int64_t j = i % shape.half;
    const int64_t head = i / shape.half % shape.heads;
    const int64_t position = i / (shape.half * shape.heads) % shape.positions;
    const int64_t sequence = i / (shape.half * shape.heads * shape.positions);
    T* first = x + sequence * shape.batch_stride + position * shape.position_stride + head * shape.head_stride + j;
    T* second = first + shape.half;
    const int64_t angle = position * shape.half + j;
    const Pair turned =
        rotate({widen(*first), widen(*second)}, widen(cosine[angle]), direction * widen(sine[angle]));
    *first = narrow<T>(turned.first);
    *second = narrow<T>(turned.second);
  }
}

}  // namespace

void launch_gelu_backward(cudaStream_t stream, Element type, const void* dy, void* h, int64_t n) {
  if (n == 0) return;
  with_type(type, divides(type, n) && aligned(dy) && aligned(h), [&](auto t, auto width) {
    using T = decltype(t);
    constexpr int N = decltype(width)::value;
    launch("gelu_backward", {stream, blocks_for(n / N), kThreads}, gelu_backward_kernel<T, N>, static_cast<const T*>(dy),
           static_cast<T*>(h), n / N);
  });
}

void launch_swiglu(cudaStream_t stream, Element type, const void* h, void* y, int64_t rows, int64_t size) {
  if (rows * size == 0) return;
  with_type(type, divides(type, size) && aligned(h) && aligned(y), [&](auto t, auto width) {
    using T = decltype(t);
    constexpr int N = decltype(width)::value;
    const int64_t packs = rows * size / N;
    launch("swiglu", {stream, blocks_for(packs), kThreads}, swiglu_kernel<T, N>, static_cast<const T*>(h),
           static_cast<T*>(y), packs, size / N);
  });
}

void launch_swiglu_backward(cudaStream_t stream, Element type, const void* dy, void* h, int64_t rows, int64_t size) {
  if (rows * size == 0) return;
  with_type(type, divides(type, size) && aligned(dy) && aligned(h), [&](auto t, auto width) {
    using T = decltype(t);
    constexpr int N = decltype(width)::value;
    const int64_t packs = rows * size / N;
    launch("swiglu_backward", {stream, blocks_for(packs), kThreads}, swiglu_backward_kernel<T, N>,
           static_cast<const T*>(dy), static_cast<T*>(h), packs, size / N);
  });
}

void launch_rotate(cudaStream_t stream, Element type, void* x, const void* cosine, const void* sine,
                   const RotaryShape& shape, float direction) {
  const int64_t pairs = shape.batch * shape.positions * shape.heads * shape.half;
  if (pairs == 0) return;
  with_type(type, false, [&](auto t, auto) {
    using T = decltype(t);
    launch("rotate", {stream, blocks_for(pairs), kThreads}, rotate_kernel<T>, static_cast<T*>(x),
           static_cast<const T*>(cosine), static_cast<const T*>(sine), shape, pairs, direction);
  });
}

}  // namespace lockstep::nn::cuda
