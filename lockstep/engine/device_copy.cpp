#include "lockstep/engine/device_copy.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/units.h"

namespace lockstep::engine {
namespace {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

void throw_late(const std::string& what, double seconds, const char* look_at) {
  throw EnvironmentError({.code = "LS4014",
                          .what = cat("offload: ", what, " has not ended after ", format_duration(seconds)),
                          .way_out = cat(look_at, "; the last checkpoint is good: start again to resume")});
}

// The events around the copy are timed; the one it begins behind is not.
DeviceCopy::DeviceCopy(const c10::Stream& stream)
    : stream_(stream),
      asked_(stream.device_type()),
      begun_(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT),
      ended_(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT) {
  asked_.record(current_stream(stream.device()));
}

DeviceCopy::~DeviceCopy() {
  try {
    if (on_device_.defined() && !done()) order_after();
  } catch (const std::exception&) {  // the device has failed: whoever uses it next is told
  }
}

void DeviceCopy::start(at::Tensor from, at::Tensor to) {
  LOCKSTEP_CHECK(!started_ && from.is_cpu() != to.is_cpu(), "from ", from.device(), " to ", to.device());
  LOCKSTEP_CHECK(from.scalar_type() == to.scalar_type(), from.dtype(), " to ", to.dtype());
  const c10::StreamGuard on(stream_);
  asked_.block(stream_);
  begun_.record(stream_);
  to.copy_(from, /*non_blocking=*/true);
  ended_.record(stream_);
  started_ = true;
  on_host_ = from.is_cpu() ? from : to;
  on_device_ = from.is_cpu() ? std::move(to) : std::move(from);
}

void DeviceCopy::order_after() {
  ended_.block(current_stream(stream_.device()));
  on_device_.reset();
}

bool DeviceCopy::done() {
  if (started_ && !ended_.query()) return false;
  on_device_.reset();
  on_host_.reset();
  return true;
}

// Asked again and again: a synchronize would hang with the device.
double DeviceCopy::wait(std::chrono::milliseconds deadline, const std::string& what) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kSpin(50), kPause(50);  // short copies end while we spin
  if (done()) return 0;
  const auto began = Clock::now();
  const auto waited = [began] { return std::chrono::duration<double>(Clock::now() - began); };
  while (!done()) {
    if (waited() > deadline) throw_late(what, waited().count(), "look at the GPU (nvidia-smi, and Xid in the kernel's log)");
    if (waited() > kSpin) std::this_thread::sleep_for(kPause);
  }
  ended_.synchronize();  // returns at once: whoever counts waits for the device sees this one
  return waited().count();
}

double DeviceCopy::seconds() const { return started_ ? begun_.elapsedTime(ended_) / 1000 : 0; }

}  // namespace lockstep::engine
