// Operators of the emulated device with kernels of their own: those that make tensors, look at storages, and copy.
#include <ATen/Context.h>
#include <ATen/DeviceGuard.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include <optional>
#include <string>

#include "support/gpu/device_memory.h"
#include "support/gpu/fallback.h"
#include "support/gpu/host_view.h"
#include "support/gpu/streams.h"
#include "support/gpu/synchronisations.h"

namespace lockstep::testing::gpu {
namespace {

using c10::SymIntArrayRef;
using std::optional;

c10::DispatchKeySet keys() { return c10::DispatchKeySet(c10::DispatchKey::CUDA); }

c10::Device prepared(optional<at::Device> device, optional<bool> pinned) {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  return device.value_or(c10::Device(c10::kCUDA));
}

at::Tensor empty(SymIntArrayRef size, optional<at::ScalarType> type, optional<at::Layout>, optional<at::Device> device,
                 optional<bool> pinned, optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(prepared(device, pinned));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_allocator(), keys(),
                                   type.value_or(c10::get_default_dtype_as_scalartype()), format);
}

at::Tensor empty_strided(SymIntArrayRef size, SymIntArrayRef stride, optional<at::ScalarType> type, optional<at::Layout>,
                         optional<at::Device> device, optional<bool> pinned) {
  const c10::DeviceGuard guard(prepared(device, pinned));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_allocator(),
                                           keys(), type.value_or(c10::get_default_dtype_as_scalartype()));
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  const Kernel kernel;
  note_synchronisation("item");
  return at::_local_scalar_dense(host_view(self));
}

void record_stream(at::Tensor& self, at::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

// A device reads and writes it by itself.
bool is_pinned_and_dense(const at::Tensor& host) {
  const auto block = block_of(host.storage().data());
  return block && block->pinned() && host.is_contiguous();
}

// Between host and device. What the host waits for, and why.
void copy_across(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const bool down = to.is_cpu();
  const bool pinned = is_pinned_and_dense(down ? to : from);
  if (non_blocking && pinned) {
    const at::Tensor target = down ? to : host_view(to), source = down ? host_view(from) : from;
    LateCopy copy{.run = [target, source] { target.copy_(source); }, .blocks = {}};
    for (const at::Tensor& tensor : {to, from})
      if (auto block = block_of(tensor.storage().data())) copy.blocks.push_back(std::move(block));
    put_copy(current_stream(current_device()), std::move(copy));
    return;
  }
  const Kernel kernel;
  note_synchronisation(down ? (non_blocking ? "copy to pageable memory" : "copy to the host")
                            : (pinned ? "copy to the device" : "copy from pageable memory"));
  host_view(to).copy_(host_view(from));
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  const c10::DeviceGuard guard(self.is_cuda() ? self.device() : src.device());
  if (self.numel() == 0 || src.numel() == 0 || self.is_cuda() == src.is_cuda()) {
    const Kernel kernel;
    host_view(self).copy_(host_view(src));  // says as well what does not fit
  } else {
    copy_across(self, src, non_blocking);
  }
  return self;
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("copy_", TORCH_FN(copy_));
  for (const char* name : {"as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex", "is_set_to",
                           "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_as_it_is>());
  // LibTorch's for any device reads the ends of the groups on the host; CUDA's does not.
  m.impl("_grouped_mm", torch::CppFunction::makeFromBoxedFunction<&run_on_host_memory>());
  m.impl("resize_", torch::CppFunction::makeFromBoxedFunction<&run_resize>());
}

}  // namespace
}  // namespace lockstep::testing::gpu
