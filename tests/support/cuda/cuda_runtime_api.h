// CUDA's names as far as lockstep/nn/cuda uses them, for g++: kernels run on the CPU (emulation.h).
#pragma once

#include <cstddef>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};

using cudaStream_t = struct CUstream_st*;

enum cudaError_t {  // with CUDA's numbers
  cudaSuccess = 0,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorIllegalAddress = 700,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719,
};
// What was found: block, thread, what it did. Of the last failed launch of this thread of the host.
const char* cudaGetErrorString(cudaError_t code);
cudaError_t cudaGetLastError();  // that of the last launch; then cudaSuccess

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor = 75 };
// What an H100 says: the operators of LibTorch that ask for one are to be called.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 9;
  return cudaSuccess;
}
