// The language of kernels for g++: what threads of a block see and do together goes to the emulation.
#pragma once

#include <cmath>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"
#include "emulation.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(threads)

// Memory of the block between inaccessible pages, filled with ones (as a float: NaN) for each block.
#define LOCKSTEP_SHARED(type, name)                                                                     \
  static constexpr lockstep::emulation::Shared name##_place(#name, sizeof(std::type_identity_t<type>));     \
  auto& name = *static_cast<std::type_identity_t<type>*>(name##_place.of_block())

inline constinit thread_local uint3 threadIdx{}, blockIdx{};
inline constinit thread_local dim3 blockDim{}, gridDim{};

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  lockstep::emulation::barrier(where);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   std::source_location where = std::source_location::current()) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  lockstep::emulation::shuffle_down({.mask = mask, .delta = delta, .width = width, .where = where}, &value, sizeof(T));
  return value;
}

// A macro: newer C libraries have a function of this name.
#define rsqrtf(x) (1.0f / std::sqrt(x))

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  static_assert((sizeof(Parameters) + ... + 0) <= 4096, "arguments of a kernel");
  const std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  return lockstep::emulation::launch(*config, [&] { std::apply(kernel, values); });
}
