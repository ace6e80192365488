#include "support/gpu/host_view.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include "support/gpu/arena.h"

namespace lockstep::testing::gpu {
namespace {

// The whole memory of a storage; null where a tensor has none at the moment.
c10::Storage host_storage(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  void* memory = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(memory, c10::kCPU), nullptr,
                      /*resizable=*/false);
}

at::Tensor over(c10::Storage storage, const at::Tensor& like) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                            like.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return view;
}

bool shares(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_cpu() ? tensor : over(host_storage(tensor), tensor);
}

at::Tensor on_device(const at::Tensor& host) {
  if (!host.defined()) return host;
  const at::Tensor dense = host.is_non_overlapping_and_dense() ? host : host.contiguous();
  const DeviceAccess access;
  const at::Tensor device = at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(at::kCUDA));
  host_view(device).copy_(dense);
  return device;
}

at::Tensor HostViews::view(const at::Tensor& tensor, bool written) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  for (const Pair& pair : pairs_)
    if (pair.device.is_same(tensor)) return pair.host;
  const bool resizable = written && tensor.numel() == 0;
  at::Tensor host;
  if (resizable) host = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  for (const Pair& pair : pairs_)
    if (!host.defined() && !pair.resizable && shares(pair.device, tensor)) host = over(pair.host.storage(), tensor);
  if (!host.defined()) host = host_view(tensor);
  pairs_.push_back({.device = tensor, .host = host, .resizable = resizable});
  return host;
}

at::Tensor HostViews::lead_back(const at::Tensor& result) const {
  if (!result.defined()) return result;
  for (const Pair& pair : pairs_)
    if (pair.host.is_same(result)) return pair.device;
  for (const Pair& pair : pairs_)
    if (!pair.resizable && shares(pair.host, result) && pair.device.scalar_type() == result.scalar_type())
      return at::as_strided(pair.device, result.sizes(), result.strides(), result.storage_offset());
  return on_device(result);
}

void HostViews::take_over_resized() const {
  for (const Pair& pair : pairs_) {
    if (!pair.resizable || pair.host.sizes() == pair.device.sizes()) continue;
    const at::Tensor filled = on_device(pair.host);
    at::Tensor(pair.device).set_(filled.storage(), 0, filled.sizes(), filled.strides());
  }
}

}  // namespace lockstep::testing::gpu
