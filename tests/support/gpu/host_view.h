// How an operator of the CPU sees tensors of the emulated device: as tensors of the CPU over the same memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::testing::gpu {

// Same memory, sizes, strides and type. Does not keep the memory alive. A tensor of the CPU, or an undefined one: itself.
at::Tensor host_view(const at::Tensor& tensor);

// A new tensor of the current device with the values and, where they are dense, the strides of one of the CPU.
at::Tensor on_device(const at::Tensor& host);

// Views for one call: tensors that share a storage share it as views too, and what comes out is led back.
class HostViews {
 public:
  // `written`: an empty one may be resized by the operator.
  at::Tensor view(const at::Tensor& tensor, bool written);
  // What an operator returned: the tensor whose view it is, a view into one, or a copy on the device.
  at::Tensor lead_back(const at::Tensor& result) const;
  // Outputs that were empty and have been resized.
  void take_over_resized() const;

 private:
  struct Pair {
    at::Tensor device, host;
    bool resizable;
  };
  std::vector<Pair> pairs_;
};

}  // namespace lockstep::testing::gpu
