// A copy between host and device beside the kernels of the compute stream: on a stream of its own, ordered by events. The host
// puts it there and goes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <string>

namespace lockstep::engine {

// EnvironmentError LS4014: a copy that has not ended after so many seconds.
[[noreturn]] void throw_late(const std::string& what, double seconds, const char* look_at);

// One copy. Used by one thread at a time.
//
// LibTorch gives device memory back in the order of the stream that took it, here the calling thread's current stream: the
// compute stream. Memory that a copy on another stream still reads or writes must therefore not go back before the compute
// stream is ordered behind the copy (order_after). The other way, to mark the memory as used by the copy's stream, would
// leave it to chance which memory is free at the next allocation, and with it the peak. Until then a DeviceCopy holds the
// device's tensor, and the host's until the copy has ended. It does not hold the memory of a unit (UnitBuffers::drop): its
// owner calls order_after() first.
class DeviceCopy {
 public:
  // It will begin behind what the current stream of the stream's device holds now.
  explicit DeviceCopy(const c10::Stream& stream);
  // One that nobody waited for: the current stream is ordered behind it.
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  // to = from, of one dtype, both contiguous, one of them on the device; the other in pinned memory, else LibTorch holds the
  // host. Once, on any thread.
  void start(at::Tensor from, at::Tensor to);

  // What the current stream is given from now on begins behind the copy. The host waits for nothing.
  void order_after();
  // The host waits; returns for how many seconds, 0 where the copy had ended. EnvironmentError LS4014 past the deadline;
  // `what` names the copy.
  double wait(std::chrono::milliseconds deadline, const std::string& what);
  // Whether it has ended, or was never started. Throws what LibTorch does where the device has failed.
  bool done();
  // On its stream, of a copy that is done.
  double seconds() const;

 private:
  c10::Stream stream_;
  c10::Event asked_, begun_, ended_;
  at::Tensor on_device_, on_host_;
  bool started_ = false;
};

}  // namespace lockstep::engine
