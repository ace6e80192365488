#include "lockstep/engine/memory_tracker.h"

#include <c10/core/Allocator.h>

#include <mutex>
#include <new>

#include "lockstep/engine/block_cache.h"

namespace lockstep::engine {
namespace {

// Stands in front of every allocation; its size keeps the 64-byte alignment that vector code expects.
struct alignas(64) Header {
  std::shared_ptr<MemoryAccount> account;
  int64_t bytes = 0;
  MemoryCategory category = MemoryCategory::kBuffers;
};
static_assert(sizeof(Header) == 64);

thread_local const MemoryScope* current_scope = nullptr;

// LibTorch's allocator is process-wide and outlives everything, so the blocks behind it are too.
BlockCache& blocks() {
  static auto* cache = new BlockCache;
  return *cache;
}

void free_block(void* data) {
  if (data == nullptr) return;
  auto* header = reinterpret_cast<Header*>(static_cast<std::byte*>(data) - sizeof(Header));
  if (header->account) header->account->remove(header->category, header->bytes);
  const auto bytes = static_cast<size_t>(header->bytes);
  header->~Header();
  blocks().give_back(header, bytes + sizeof(Header));
}

}  // namespace

class TrackingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, cpu};
    auto* header = new (blocks().take(bytes + sizeof(Header))) Header;
    header->bytes = static_cast<int64_t>(bytes);
    if (current_scope != nullptr && current_scope->account_ != nullptr) {
      header->account = current_scope->account_;
      header->category = current_scope->category_;
      header->account->add(header->category, header->bytes);
    }
    void* data = header + 1;
    return {data, data, &free_block, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

void MemoryAccount::add(MemoryCategory category, int64_t bytes) {
  Counter& counter = counters_[static_cast<size_t>(category)];
  const int64_t live = counter.live.fetch_add(bytes) + bytes;
  int64_t peak = counter.peak.load();
  while (live > peak && !counter.peak.compare_exchange_weak(peak, live)) {
  }
}

void MemoryAccount::remove(MemoryCategory category, int64_t bytes) {
  counters_[static_cast<size_t>(category)].live.fetch_sub(bytes);
}

int64_t MemoryAccount::live(MemoryCategory category) const { return counters_[static_cast<size_t>(category)].live; }
int64_t MemoryAccount::peak(MemoryCategory category) const { return counters_[static_cast<size_t>(category)].peak; }

void MemoryAccount::restart_peak(MemoryCategory category) {
  Counter& counter = counters_[static_cast<size_t>(category)];
  counter.peak = counter.live.load();
}

void install_memory_tracking() {
  // LibTorch keeps the pointer for ever: the allocator is never destroyed.
  static std::once_flag once;
  std::call_once(once, [] { c10::SetAllocator(c10::DeviceType::CPU, new TrackingAllocator, /*priority=*/100); });
}

int64_t fresh_blocks() { return blocks().fresh_blocks(); }

MemoryScope::MemoryScope(std::shared_ptr<MemoryAccount> account, MemoryCategory category)
    : account_(std::move(account)), category_(category), outer_(current_scope) {
  current_scope = this;
}

MemoryScope::~MemoryScope() { current_scope = outer_; }

}  // namespace lockstep::engine
