// What LibTorch asks of a backend: the current device and stream, events, and whether there is CUDA at all.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "support/gpu/device_memory.h"
#include "support/gpu/streams.h"
#include "support/gpu/synchronisations.h"

namespace lockstep::testing::gpu {
namespace {

struct EmulatedGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device.index() >= 0 && device.index() != before.index()) set_current_device(device.index());
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < gpu::device_count()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(gpu::device_count()); }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCUDA, device.index() < 0 ? current_device() : device.index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return stream_from_pool(device.index(), high_priority);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(device.index(), priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override { return query_stream(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for_stream(stream); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { wait_for_device(device); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    record_event(event, stream);
  }
  void block(void* event, const c10::Stream& stream) const override { block_stream(event, stream); }
  bool queryEvent(void* event) const override { return query_event(event); }
  void synchronizeEvent(void* event) const override { wait_for_event(event); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { destroy_event(event); }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0; }  // nothing here is told by a clock

  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    device_allocator().recordStream(memory, stream);
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, EmulatedGuard)

}  // namespace

struct EmulatedHooks final : at::CUDAHooksInterface {
  explicit EmulatedHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return gpu::device_count() > 0; }
  bool hasCUDA() const override { return gpu::device_count() > 0; }
  int getNumGPUs() const override { return gpu::device_count(); }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }

  at::DeviceIndex deviceCount() const override { return static_cast<at::DeviceIndex>(gpu::device_count()); }
  at::DeviceIndex current_device() const override { return gpu::current_device(); }
  at::DeviceIndex getCurrentDevice() const override { return gpu::current_device(); }
  void setCurrentDevice(at::DeviceIndex device) const override { set_current_device(device); }
  at::DeviceIndex exchangeDevice(at::DeviceIndex device) const override {
    const at::DeviceIndex before = gpu::current_device();
    set_current_device(device);
    return before;
  }
  at::DeviceIndex maybeExchangeDevice(at::DeviceIndex device) const override { return exchangeDevice(device); }
  void deviceSynchronize(at::DeviceIndex device) const override { wait_for_device(device); }

  bool isPinnedPtr(const void* data) const override {
    const auto block = block_of(data);
    return block && block->pinned();
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_allocator(); }
  at::Device getDeviceFromPtr(void* data) const override {
    const auto block = block_of(data);
    TORCH_CHECK(block && !block->pinned(), "emulated GPU: no memory of a device");
    return {at::kCUDA, block->device()};
  }
  std::string showConfig() const override { return "an emulated GPU in host memory"; }
};

}  // namespace lockstep::testing::gpu

namespace at {

using lockstep::testing::gpu::EmulatedHooks;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, EmulatedHooks)

}  // namespace at
