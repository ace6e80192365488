#include "lockstep/engine/unit_buffers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <numeric>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::engine {

UnitBuffers::UnitBuffers(const std::vector<int64_t>& sizes, UnitBufferOptions options) : options_(std::move(options)) {
  const auto tensor_options = at::TensorOptions().dtype(options_.dtype).device(options_.device);
  if (!options_.transient) {
    const MemoryScope scope(options_.memory, options_.category);
    whole_ = at::zeros({std::accumulate(sizes.begin(), sizes.end(), int64_t{0})}, tensor_options);
    int64_t begin = 0;
    for (const int64_t size : sizes) units_.push_back(whole_.narrow(0, std::exchange(begin, begin + size), size));
    return;
  }
  for (const int64_t size : sizes) {
    at::Tensor tensor = at::empty({0}, tensor_options);
    const auto bytes = static_cast<size_t>(size) * tensor.element_size();
    const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, options_.device),
                               c10::GetAllocator(options_.device.type()), /*resizable=*/false);
    units_.push_back(tensor.set_(storage, 0, {size}, {1}));
  }
}

at::Tensor UnitBuffers::slice(int64_t begin, int64_t end) const {
  LOCKSTEP_CHECK(whole_.defined(), "units that come and go are not side by side");
  return whole_.narrow(0, begin, end - begin);
}

bool UnitBuffers::held(size_t index) const { return unit(index).unsafeGetTensorImpl()->storage_initialized(); }

void UnitBuffers::hold(size_t index) {
  const MemoryScope scope(options_.memory, options_.category);
  hold_at(index, c10::GetAllocator(options_.device.type())->allocate(unit(index).nbytes()));
}

void UnitBuffers::hold_at(size_t index, at::DataPtr memory) {
  LOCKSTEP_CHECK(options_.transient && !held(index), "unit ", index, " is held already");
  unit(index).storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
}

void UnitBuffers::drop(size_t index) {
  LOCKSTEP_CHECK(options_.transient && held(index), "unit ", index, " is not held");
  unit(index).storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, options_.device));
}

}  // namespace lockstep::engine
