// Pieces that the kernels share: their launch, elements as fp32, several at once, sums over a block.
// The same source is compiled by g++ for an emulation on the CPU (tests/support/cuda), which brings headers of its own for
// CUDA's and defines the macros below; LOCKSTEP_SMALL_GRIDS where many kernels run there, whose threads take turns.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/nn/cuda/launch.cuh"

// LOCKSTEP_SHARED(float[32], name): an array of the block.
#if !defined(LOCKSTEP_SHARED)
#define LOCKSTEP_SHARED(type, name) __shared__ std::type_identity_t<type> name
#endif
#if !defined(LOCKSTEP_MOST_BLOCKS)
#define LOCKSTEP_MOST_BLOCKS (1 << 20)
#endif

namespace lockstep::nn::cuda {

#if defined(LOCKSTEP_SMALL_GRIDS)
constexpr int kThreads = 64;
#else
constexpr int kThreads = 256;
#endif
constexpr int kWarp = 32;
constexpr int64_t kMostBlocks = LOCKSTEP_MOST_BLOCKS;

struct Grid {
  cudaStream_t stream;
  dim3 blocks, threads;
};
// std::runtime_error "<name>: <CUDA's text>" where the launch is refused.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, const Grid& grid, void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.stream = grid.stream;
  const cudaError_t code = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  if (code == cudaSuccess) return;
  cudaGetLastError();  // told here, so that nobody finds it again
  throw std::runtime_error(std::string(name) + ": " + cudaGetErrorString(code));
}

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// N neighbours, moved as one access.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};
template <typename T, int N>
__device__ inline Pack<T, N> load(const T* from, int64_t pack) {
  return reinterpret_cast<const Pack<T, N>*>(from)[pack];
}
template <typename T, int N>
__device__ inline void store(T* to, int64_t pack, const Pack<T, N>& values) {
  reinterpret_cast<Pack<T, N>*>(to)[pack] = values;
}

// Whether rows of `size` elements that begin at these pointers can be moved 16 bytes at a time.
inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }
template <typename T>
constexpr int kLanes = 16 / sizeof(T);

// body(T{}, std::integral_constant<int, N>) with the type and the number of neighbours.
template <int N>
struct Width {
  static constexpr int value = N;
};
template <typename Body>
void with_type(Element type, bool wide, const Body& body) {
  if (type == Element::kFloat)
    wide ? body(float{}, Width<kLanes<float>>{}) : body(float{}, Width<1>{});
  else
    wide ? body(__nv_bfloat16{}, Width<kLanes<__nv_bfloat16>>{}) : body(__nv_bfloat16{}, Width<1>{});
}
inline bool divides(Element type, int64_t size) { return size % (type == Element::kFloat ? 4 : 8) == 0; }

inline unsigned at_most_blocks(int64_t blocks) {
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > kMostBlocks ? kMostBlocks : blocks);
}
inline unsigned blocks_for(int64_t threads) { return at_most_blocks((threads + kThreads - 1) / kThreads); }

__device__ inline float shuffle_down(float x, int step) { return __shfl_down_sync(0xffffffffu, x, step); }
__device__ inline double shuffle_down(double x, int step) { return __shfl_down_sync(0xffffffffu, x, step); }
__device__ inline Pair shuffle_down(Pair x, int step) {
  return {shuffle_down(x.first, step), shuffle_down(x.second, step)};
}
__device__ inline SoftmaxSum shuffle_down(SoftmaxSum x, int step) {
  return {shuffle_down(x.most, step), shuffle_down(x.sum, step)};
}

// join() over all threads of the block, the result in each; every thread of the block calls it. `empty` changes nothing.
// Order: within a warp thread i with i + 16, then i + 8 and so on; `empty` with the warps, the first of them first.
template <typename V, typename Join>
__device__ V over_block(V value, V empty, const Join& join) {
  LOCKSTEP_SHARED(V[kWarp], of_warp);
  for (int step = kWarp / 2; step > 0; step /= 2) value = join(value, shuffle_down(value, step));
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = (blockDim.x + kWarp - 1) / kWarp;
  __syncthreads();  // the last use of of_warp is over
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  V total = empty;
  for (int i = 0; i < warps; ++i) total = join(total, of_warp[i]);
  return total;
}

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
  __device__ double operator()(double a, double b) const { return a + b; }
  __device__ Pair operator()(Pair a, Pair b) const { return {a.first + b.first, a.second + b.second}; }
};

}  // namespace lockstep::nn::cuda
