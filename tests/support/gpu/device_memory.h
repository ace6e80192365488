// Blocks of memory of the emulated devices (arena.h) and of pinned memory of the host. A block is filled with bytes of NaN, so
// that what is read before it was written shows.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <set>

namespace lockstep::testing::gpu {

// Lives as long as a copy that was asked for uses it, also where its owner has given it back.
class Block {
 public:
  Block(size_t bytes, c10::DeviceIndex device, c10::StreamId stream);  // device -1: pinned memory of the host
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // as allocated: a multiple of 512
  bool pinned() const { return device_ < 0; }
  c10::DeviceIndex device() const { return device_; }

  void give_back();
  void record(c10::StreamId stream);
  // The owner gave it back while a copy on `stream` had not been made, and nothing told the allocator of that stream: on a
  // GPU another tensor may have it by now.
  bool lost_to(c10::StreamId stream) const;

 private:
  void* data_;
  size_t bytes_;
  c10::DeviceIndex device_;
  c10::StreamId stream_;  // current when it was allocated
  mutable std::mutex mutex_;
  bool given_back_ = false;
  std::set<c10::StreamId> recorded_;
};

// The block that an address lies in; null: none of ours.
std::shared_ptr<Block> block_of(const void* address);

c10::DeviceAllocator& device_allocator();
c10::Allocator& pinned_allocator();

int device_count();

}  // namespace lockstep::testing::gpu
