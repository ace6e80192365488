// Values of the host for a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace lockstep::nn {

// A copy [values.size()] on `device`, at once or behind what its current stream holds. The host does not wait: a GPU reads pinned
// memory, which LibTorch keeps until it has.
template <typename T>
at::Tensor upload(std::span<const T> values, at::Device device) {
  const auto type = at::TensorOptions(c10::CppTypeToScalarType<T>::value);
  if (values.empty()) return at::empty({0}, type.device(device));
  const at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, type.pinned_memory(device.is_cuda()));
  std::ranges::copy(values, host.mutable_data_ptr<T>());
  return host.to(at::TensorOptions(device), /*non_blocking=*/true);
}

}  // namespace lockstep::nn
