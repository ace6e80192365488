// Counts the bytes of CPU tensors alive and their peak, by wrapping LibTorch's CPU allocator.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace lockstep::testing {

class CountingAllocator : public c10::Allocator {
 public:
  // The one wrapper of the process, installed by the first call. It is never taken down: tensors may outlive any scope.
  static CountingAllocator& instance() {
    static auto* allocator = [] {
      auto* made = new CountingAllocator(c10::GetCPUAllocator());
      c10::SetCPUAllocator(made, /*priority=*/100);
      return made;
    }();
    return *allocator;
  }

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  void reset_peak() { peak_ = live_; }

  // Some kernels allocate raw memory, for which the context of a block must be its address: sizes are looked up by it.
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner_->allocate(bytes);
    void* address = data.release_context();
    const std::lock_guard lock(mutex_);
    if (address != nullptr) sizes_[address] = static_cast<int64_t>(bytes);
    live_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, live_);
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}
  static void release(void* address) {
    CountingAllocator& self = instance();
    {
      const std::lock_guard lock(self.mutex_);
      const auto found = self.sizes_.find(address);
      if (found != self.sizes_.end()) self.live_ -= found->second, self.sizes_.erase(found);
    }
    self.inner_->raw_deleter()(address);
  }

  c10::Allocator* inner_;
  std::mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

}  // namespace lockstep::testing
