#include "support/gpu/device_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

#include "support/gpu/arena.h"
#include "support/gpu/emulated_gpu.h"
#include "support/gpu/streams.h"

namespace lockstep::testing::gpu {
namespace {

constexpr size_t kGranule = 512;  // what PyTorch's allocator for CUDA rounds to
constexpr size_t kMostDevices = 8;
constexpr int kNaN = 0xFF;  // fp32, bf16 and fp64 of these bytes are NaN, integers -1

std::atomic<int> devices{1};
std::atomic<int64_t> bytes_of_a_device{int64_t{16} << 30};

size_t rounded(size_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

// All blocks that have owners, by address. Never destroyed: tensors of static lifetime may outlive it.
struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, std::shared_ptr<Block>> by_address;
  std::array<c10::CachingDeviceAllocator::DeviceStats, kMostDevices> stats;
};
Blocks& blocks() {
  static auto* all = new Blocks;
  return *all;
}

void count(Block& block, bool taken) {
  if (block.pinned()) return;
  c10::CachingDeviceAllocator::DeviceStats& stats = blocks().stats.at(static_cast<size_t>(block.device()));
  for (auto* counter : {&stats.allocated_bytes[0], &stats.reserved_bytes[0], &stats.active_bytes[0], &stats.requested_bytes[0]})
    taken ? counter->increase(block.bytes()) : counter->decrease(block.bytes());
  taken ? stats.allocation[0].increase(1) : stats.allocation[0].decrease(1);
}

void free_block(void* data) {
  if (data == nullptr) return;
  std::shared_ptr<Block> block;
  {
    const std::lock_guard lock(blocks().mutex);
    const auto found = blocks().by_address.find(reinterpret_cast<uintptr_t>(data));
    TORCH_CHECK(found != blocks().by_address.end(), "emulated GPU: memory given back twice");
    block = std::move(found->second);
    blocks().by_address.erase(found);
    count(*block, false);
  }
  block->give_back();
}

void* take(size_t bytes, c10::DeviceIndex device, c10::StreamId stream) {
  const auto block = std::make_shared<Block>(bytes, device, stream);
  const std::lock_guard lock(blocks().mutex);
  count(*block, true);
  blocks().by_address.emplace(reinterpret_cast<uintptr_t>(block->data()), block);
  return block->data();
}

size_t used(c10::DeviceIndex device) {
  const std::lock_guard lock(blocks().mutex);
  return static_cast<size_t>(blocks().stats.at(static_cast<size_t>(device)).allocated_bytes[0].current);
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_block, c10::kCPU};
    void* data = take(bytes, -1, 0);
    return {data, data, &free_block, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

class EmulatedAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::kCUDA, current_device());
    if (bytes == 0) return {nullptr, nullptr, &free_block, device};
    const auto all = static_cast<size_t>(bytes_of_a_device.load());
    TORCH_CHECK_WITH(OutOfMemoryError, used(device.index()) + rounded(bytes) <= all, "CUDA out of memory: ", bytes,
                     " bytes asked, ", all - std::min(all, used(device.index())), " free of the emulated GPU's ", all);
    void* data = take(bytes, device.index(), current_stream(device.index()).id());
    return {data, data, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const DeviceAccess access;
    default_copy_data(to, from, bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    if (const auto block = block_of(memory.get())) block->record(stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(blocks().mutex);
    return blocks().stats.at(static_cast<size_t>(device));
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(blocks().mutex);
    blocks().stats.at(static_cast<size_t>(device)).allocated_bytes[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(blocks().mutex);
    c10::CachingDeviceAllocator::DeviceStats& stats = blocks().stats.at(static_cast<size_t>(device));
    for (auto* counter : {&stats.allocated_bytes[0], &stats.reserved_bytes[0], &stats.active_bytes[0]}) counter->reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto all = static_cast<size_t>(bytes_of_a_device.load());
    return {all - std::min(all, used(device)), all};
  }
};

// As soon as the library is loaded.
[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(c10::kCUDA, &device_allocator());
  return true;
}();

}  // namespace

Block::Block(size_t bytes, c10::DeviceIndex device, c10::StreamId stream)
    : data_(device < 0 ? std::aligned_alloc(kGranule, rounded(bytes)) : take_device_memory(rounded(bytes))),
      bytes_(rounded(bytes)),
      device_(device),
      stream_(stream) {
  if (data_ == nullptr) throw std::bad_alloc();
  const DeviceAccess access;
  std::memset(data_, kNaN, bytes_);
}

Block::~Block() { pinned() ? std::free(data_) : give_back_device_memory(data_, bytes_); }

void Block::give_back() {
  const std::lock_guard lock(mutex_);
  given_back_ = true;
}

void Block::record(c10::StreamId stream) {
  const std::lock_guard lock(mutex_);
  recorded_.insert(stream);
}

bool Block::lost_to(c10::StreamId stream) const {
  const std::lock_guard lock(mutex_);
  return given_back_ && !pinned() && stream != stream_ && !recorded_.contains(stream);
}

std::shared_ptr<Block> block_of(const void* address) {
  const std::lock_guard lock(blocks().mutex);
  const auto place = reinterpret_cast<uintptr_t>(address);
  auto found = blocks().by_address.upper_bound(place);
  if (address == nullptr || found == blocks().by_address.begin()) return nullptr;
  --found;
  return place < found->first + found->second->bytes() ? found->second : nullptr;
}

c10::DeviceAllocator& device_allocator() {
  static auto* allocator = new EmulatedAllocator;
  return *allocator;
}

c10::Allocator& pinned_allocator() {
  static auto* allocator = new PinnedAllocator;
  return *allocator;
}

int device_count() { return devices; }

void set_devices(int count) {
  TORCH_CHECK(count >= 0 && count <= static_cast<int>(kMostDevices), count, " emulated devices; at most ", kMostDevices);
  devices = count;
}

void set_device_bytes(int64_t bytes) { bytes_of_a_device = bytes; }

}  // namespace lockstep::testing::gpu
