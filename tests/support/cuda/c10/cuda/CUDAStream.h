// The current stream of a device of type CUDA, whoever stands in for that type: its number as CUDA's handle.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>

#include "cuda_runtime_api.h"

namespace c10::cuda {

class CUDAStream {
 public:
  explicit CUDAStream(Stream stream) : stream_(stream) {}
  cudaStream_t stream() const { return reinterpret_cast<cudaStream_t>(static_cast<intptr_t>(stream_.id())); }

 private:
  Stream stream_;
};

inline CUDAStream getCurrentCUDAStream(DeviceIndex device) {
  const impl::VirtualGuardImpl guard(DeviceType::CUDA);
  return CUDAStream(guard.getStream(Device(DeviceType::CUDA, device)));
}

}  // namespace c10::cuda
