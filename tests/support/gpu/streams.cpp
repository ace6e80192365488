#include "support/gpu/streams.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "support/cuda/emulation.h"
#include "support/gpu/emulated_gpu.h"
#include "support/gpu/synchronisations.h"

namespace lockstep::testing::gpu {
namespace {

using Key = std::pair<c10::DeviceIndex, c10::StreamId>;
constexpr int kPool = 32;
constexpr int kDevices = 8;

struct Queue {
  std::deque<LateCopy> held;
  uint64_t done = 0;  // of all that was ever put here
  uint64_t end() const { return done + held.size(); }
};

// Everything that was put on the stream before `position`.
struct StreamEvent {
  Key stream;
  uint64_t position = 0;
  bool asked = false;
};

// Never destroyed: events of static lifetime may outlive it.
struct Streams {
  std::recursive_mutex mutex;
  std::map<Key, Queue> queues;
};
Streams& streams() {
  static auto* all = new Streams;
  return *all;
}

std::atomic<bool> late{true};
std::atomic<int> taken_from_pool{0};

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::array<c10::StreamId, kDevices> stream_of_thread{};
// From a launch of one of our own kernels on: nobody says when it has ended. To the next time the thread asks for its stream.
thread_local std::unique_ptr<DeviceAccess> launch_access;

Key key_of(c10::Stream stream) { return {stream.device_index(), stream.id()}; }
StreamEvent& of(void* event) { return *static_cast<StreamEvent*>(event); }

void make(const LateCopy& copy, const Key& key) {
  for (const std::shared_ptr<Block>& block : copy.blocks)
    TORCH_CHECK(!block->lost_to(key.second), "emulated GPU: memory was given back while a copy on stream ", key.second,
                " still used it, and nothing was ordered behind that copy or recorded its stream");
  const DeviceAccess access;
  copy.run();
}

void run_until(const Key& key, uint64_t position) {
  const std::lock_guard lock(streams().mutex);
  Queue& queue = streams().queues[key];
  while (!queue.held.empty() && queue.done < position) {
    const LateCopy next = std::move(queue.held.front());
    queue.held.pop_front();
    ++queue.done;
    make(next, key);
  }
}

void run_all(const Key& key) {
  const std::lock_guard lock(streams().mutex);
  run_until(key, streams().queues[key].end());
}

bool pending(const StreamEvent& event) { return streams().queues[event.stream].done < event.position; }

// Kernels of ours are launched without a word to LibTorch.
[[maybe_unused]] const bool told_of_launches = [] {
  emulation::set_before_launch([](cudaStream_t stream) {
    if (!launch_access) launch_access = std::make_unique<DeviceAccess>();
    run_all({current_device(), static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(stream))});
  });
  return true;
}();

}  // namespace

void set_late_copies(bool value) { late = value; }

c10::DeviceIndex current_device() { return device_of_thread; }

void set_current_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "CUDA error: invalid device ordinal ", static_cast<int>(device), " of ",
              device_count(), " emulated");
  device_of_thread = device;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  launch_access.reset();
  const c10::DeviceIndex index = device < 0 ? current_device() : device;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, index), stream_of_thread.at(static_cast<size_t>(index)));
}

c10::Stream exchange_stream(c10::Stream stream) {
  const c10::Stream before = current_stream(stream.device_index());
  stream_of_thread.at(static_cast<size_t>(stream.device_index())) = stream.id();
  return before;
}

c10::Stream stream_from_pool(c10::DeviceIndex device, bool high_priority) {
  const c10::DeviceIndex index = device < 0 ? current_device() : device;
  const int id = 1 + taken_from_pool++ % kPool + (high_priority ? kPool : 0);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, index), id);
}

Kernel::Kernel() { run_all(key_of(current_stream(current_device()))); }

void put_copy(c10::Stream stream, LateCopy copy) {
  const std::lock_guard lock(streams().mutex);
  streams().queues[key_of(stream)].held.push_back(std::move(copy));
  if (!late) run_all(key_of(stream));
}

void record_event(void** event, c10::Stream stream) {
  const std::lock_guard lock(streams().mutex);
  if (*event == nullptr) *event = new StreamEvent;
  of(*event) = {.stream = key_of(stream), .position = streams().queues[key_of(stream)].end(), .asked = false};
}

void destroy_event(void* event) { delete static_cast<StreamEvent*>(event); }

// Not held back themselves: memory that is given back from here on belongs to the stream that waits.
void block_stream(void* event, c10::Stream stream) {
  const std::lock_guard lock(streams().mutex);
  if (of(event).stream == key_of(stream) || !pending(of(event))) return;
  run_all(key_of(stream));
  run_until(of(event).stream, of(event).position);
}

bool query_event(void* event) {
  const std::lock_guard lock(streams().mutex);
  if (!pending(of(event))) return true;
  if (!std::exchange(of(event).asked, true)) return false;
  run_until(of(event).stream, of(event).position);
  return true;
}

void wait_for_event(void* event) {
  note_synchronisation("event");
  const std::lock_guard lock(streams().mutex);
  run_until(of(event).stream, of(event).position);
}

bool query_stream(c10::Stream stream) {
  const std::lock_guard lock(streams().mutex);
  const bool empty = streams().queues[key_of(stream)].held.empty();
  run_all(key_of(stream));
  return empty;
}

void wait_for_stream(c10::Stream stream) {
  note_synchronisation("stream");
  run_all(key_of(stream));
}

void wait_for_device(c10::DeviceIndex device) {
  note_synchronisation("device");
  const std::lock_guard lock(streams().mutex);
  std::vector<Key> keys;
  for (const auto& [key, queue] : streams().queues)
    if (key.first == device) keys.push_back(key);
  for (const Key& key : keys) run_all(key);
}

}  // namespace lockstep::testing::gpu
