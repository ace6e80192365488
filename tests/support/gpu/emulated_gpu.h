// A GPU that is none: DeviceType::CUDA for a CPU build of LibTorch, in host memory. The library registers itself when it is
// loaded; README.md says what it does as CUDA does it and what it does not. What tests ask of it and set:
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lockstep::testing::gpu {

// How often the calling thread has waited for the device since it last asked, by reason: "item", "event", "stream",
// "device", "copy to the host", "copy to pageable memory", "copy to the device", "copy from pageable memory",
// "size of aten::nonzero". The last but one waits for a copy on the host, not for the device; CUDA orders it all the same.
std::map<std::string, int64_t> take_synchronisations();

// Copies between pinned memory and a device that the host does not wait for are made as late as CUDA may make them: when
// something waits for them (streams.h). Off, they are made at once. On from the start.
void set_late_copies(bool late);

// Number of devices, one from the start; for the whole process, before the first tensor. And the memory of each.
void set_devices(int count);
void set_device_bytes(int64_t bytes);

}  // namespace lockstep::testing::gpu
