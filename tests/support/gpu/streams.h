// Streams and events of the emulated devices. Kernels run at once, in the thread that starts them; what a stream may hold
// back are copies: in order, until
//   a kernel or a copy that the host waits for is put on the stream,
//   an event behind them blocks another stream, is waited for by the host, or is asked for a second time, or
//   the host waits for the stream or the device.
// Whoever reads what was copied and has not waited reads what was there before.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <vector>

#include "support/gpu/arena.h"
#include "support/gpu/device_memory.h"

namespace lockstep::testing::gpu {

// Of the calling thread.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_stream(c10::Stream stream);  // returns the one before

c10::Stream stream_from_pool(c10::DeviceIndex device, bool high_priority);  // 32 of each, taken in turn

// While one lives, a kernel runs on the current stream of the current device: behind the copies that the stream held back, with
// the device's memory open.
class Kernel {
 public:
  Kernel();

 private:
  DeviceAccess access_;
};

struct LateCopy {
  std::function<void()> run;
  std::vector<std::shared_ptr<Block>> blocks;  // that it reads and writes
};
void put_copy(c10::Stream stream, LateCopy copy);

// An event is a place in a stream's order.
void record_event(void** event, c10::Stream stream);
void destroy_event(void* event);
void block_stream(void* event, c10::Stream stream);
bool query_event(void* event);
void wait_for_event(void* event);

bool query_stream(c10::Stream stream);
void wait_for_stream(c10::Stream stream);
void wait_for_device(c10::DeviceIndex device);

}  // namespace lockstep::testing::gpu
