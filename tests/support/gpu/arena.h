// The memory of the emulated devices: one range of addresses, which nobody may touch but for the time of a kernel or a copy.
// Host code that follows a pointer into it ends the process with SIGSEGV, as on a GPU.
#pragma once

#include <cstddef>

namespace lockstep::testing::gpu {

// While one lives, of whatever thread, the memory is open to all threads.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// Multiples of 512 bytes. std::bad_alloc where the range is full.
void* take_device_memory(size_t bytes);
void give_back_device_memory(void* memory, size_t bytes);

}  // namespace lockstep::testing::gpu
