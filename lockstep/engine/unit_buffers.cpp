#include "lockstep/engine/unit_buffers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::engine {

UnitBuffers::UnitBuffers(const std::vector<int64_t>& sizes, UnitBufferOptions options) : options_(std::move(options)) {
  int64_t kept = 0, kept_fp32 = 0;
  begins_.push_back(0);
  for (size_t index = 0; index < sizes.size(); ++index) {
    begins_.push_back(begins_.back() + sizes[index]);
    if (!transient(index)) (in_fp32(index) ? kept_fp32 : kept) += sizes[index];
  }
  if (!options_.transient || kept > 0) {
    const MemoryScope scope(options_.memory, options_.category);
    whole_ = at::zeros({kept}, at::TensorOptions().dtype(options_.dtype).device(options_.device));
  }
  if (kept_fp32 > 0) {
    const MemoryScope scope(options_.memory, options_.category);
    whole_fp32_ = at::zeros({kept_fp32}, at::TensorOptions().dtype(at::kFloat).device(options_.device));
  }
  int64_t begin = 0, begin_fp32 = 0;
  for (size_t index = 0; index < sizes.size(); ++index) {
    const int64_t size = sizes[index];
    if (!transient(index)) {
      int64_t& next = in_fp32(index) ? begin_fp32 : begin;
      units_.push_back((in_fp32(index) ? whole_fp32_ : whole_).narrow(0, std::exchange(next, next + size), size));
      continue;
    }
    at::Tensor tensor = at::empty({0}, tensor_options(index));
    const auto bytes = static_cast<size_t>(size) * tensor.element_size();
    const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, options_.device),
                               c10::GetAllocator(options_.device.type()), /*resizable=*/false);
    units_.push_back(tensor.set_(storage, 0, {size}, {1}));
  }
}

at::TensorOptions UnitBuffers::tensor_options(size_t index) const {
  return at::TensorOptions().dtype(in_fp32(index) ? at::kFloat : options_.dtype).device(options_.device);
}

at::Tensor UnitBuffers::slice(int64_t begin, int64_t end) const {
  size_t last = 0;
  while (last + 1 < units_.size() && begins_[last + 1] < end) ++last;
  const bool fp32 = in_fp32(last);
  int64_t before = 0;  // transient or of another type, and not in the buffer
  for (size_t index = 0; index < units_.size() && begins_[index] < end; ++index) {
    if (!transient(index) && in_fp32(index) == fp32) continue;
    LOCKSTEP_CHECK(begins_[index + 1] <= begin, "units that come and go, or are of another type, are not side by side");
    before += begins_[index + 1] - begins_[index];
  }
  return (fp32 ? whole_fp32_ : whole_).narrow(0, begin - before, end - begin);
}

bool UnitBuffers::held(size_t index) const { return unit(index).unsafeGetTensorImpl()->storage_initialized(); }

void UnitBuffers::hold(size_t index) {
  const MemoryScope scope(options_.memory, options_.category);
  hold_at(index, c10::GetAllocator(options_.device.type())->allocate(unit(index).nbytes()));
}

void UnitBuffers::hold_at(size_t index, at::DataPtr memory) {
  LOCKSTEP_CHECK(transient(index) && !held(index), "unit ", index, " is held already");
  unit(index).storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
}

void UnitBuffers::drop(size_t index) {
  LOCKSTEP_CHECK(transient(index) && held(index), "unit ", index, " is not held");
  unit(index).storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, options_.device));
}

}  // namespace lockstep::engine
