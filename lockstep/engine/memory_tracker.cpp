#include "lockstep/engine/memory_tracker.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "lockstep/base/text.h"
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
    MemoryAccount* account = current_scope != nullptr ? current_scope->account_.get() : nullptr;
    if (account) account->add(current_scope->category_, static_cast<int64_t>(bytes));
    auto* header = new (take(bytes, account)) Header;
    header->bytes = static_cast<int64_t>(bytes);
    if (account) {
      header->account = current_scope->account_;
      header->category = current_scope->category_;
    }
    void* data = header + 1;
    return {data, data, &free_block, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void* take(size_t bytes, MemoryAccount* account) {
    try {
      return blocks().take(bytes + sizeof(Header));
    } catch (const std::bad_alloc&) {
      if (account) account->remove(current_scope->category_, static_cast<int64_t>(bytes));
      throw;
    }
  }
};

DeviceLimitReached::DeviceLimitReached(int64_t asked, int64_t free, int64_t limit)
    : std::runtime_error(cat(asked, " bytes asked, ", free, " of ", limit, " free")), asked(asked), free(free), limit(limit) {}

void MemoryAccount::Counter::add(int64_t bytes) {
  const int64_t now = live.fetch_add(bytes) + bytes;
  int64_t before = peak.load();
  while (now > before && !peak.compare_exchange_weak(before, now)) {
  }
}

void MemoryAccount::add(MemoryCategory category, int64_t bytes) {
  if (category != MemoryCategory::kHost) {
    const int64_t used = device_.live;
    if (limit_ > 0 && used + bytes > limit_) throw DeviceLimitReached(bytes, limit_ - used, limit_);
    device_.add(bytes);
  }
  counters_[static_cast<size_t>(category)].add(bytes);
}

void MemoryAccount::remove(MemoryCategory category, int64_t bytes) {
  counters_[static_cast<size_t>(category)].live.fetch_sub(bytes);
  if (category != MemoryCategory::kHost) device_.live.fetch_sub(bytes);
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

void StepMemory::note_workspace(int64_t baseline) {
  int64_t& buffers = measured_[MemoryCategory::kBuffers];
  buffers = std::max(buffers, account_->peak(kCategory) - baseline + account_->live(MemoryCategory::kBuffers));
}

void StepMemory::note_activations() {
  int64_t& activations = measured_[MemoryCategory::kActivations];
  activations = std::max(activations, live());
}

program::MemoryBytes StepMemory::measured() const {
  program::MemoryBytes bytes = measured_;
  for (const MemoryCategory category : {MemoryCategory::kParameters, MemoryCategory::kGradients,
                                        MemoryCategory::kOptimizer, MemoryCategory::kHost})
    bytes[category] = account_->peak(category);
  bytes[MemoryCategory::kBuffers] = std::max(bytes[MemoryCategory::kBuffers], account_->peak(MemoryCategory::kBuffers));
  bytes.peak = account_->peak_total();
  return bytes;
}

}  // namespace lockstep::engine
