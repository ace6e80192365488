#include "lockstep/engine/memory_tracker.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

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

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

// Null where the host has no more.
void* fresh_block(size_t bytes) {
  void* block = nullptr;
  const size_t alignment = bytes >= kHugePage ? kHugePage : kLine;
  if (::posix_memalign(&block, alignment, bytes) != 0) return nullptr;
  // Advice only: a kernel without huge pages ignores it.
  if (alignment == kHugePage) ::madvise(block, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return block;
}

std::string bytes_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

class TrackingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, cpu};
    MemoryAccount* account = current_scope != nullptr ? current_scope->account_.get() : nullptr;
    if (account) account->add(current_scope->category_, static_cast<int64_t>(bytes));
    void* block = blocks().take(bytes + sizeof(Header));
    if (block == nullptr) {
      if (account) account->remove(current_scope->category_, static_cast<int64_t>(bytes));
      throw std::bad_alloc();
    }
    auto* header = new (block) Header;
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
};

size_t BlockCache::size_class(size_t bytes) {
  const size_t lines = std::max<size_t>(1, (bytes + kLine - 1) / kLine);
  const size_t step = std::max<size_t>(1, std::bit_floor(lines) / 4);
  return (lines + step - 1) / step * step * kLine;
}

void* BlockCache::take(size_t bytes) {
  const size_t size = size_class(bytes);
  {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& kept = free_[size];
    if (!kept.empty()) {
      void* block = kept.back();  // the last one used: its lines may still be in the cache
      kept.pop_back();
      return block;
    }
  }
  void* block = fresh_block(size);
  if (block != nullptr) fresh_.fetch_add(1);
  return block;
}

void BlockCache::give_back(void* block, size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_[size_class(bytes)].push_back(block);
}

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
  for (const MemoryCategory category : {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kOptimizer,
                                        MemoryCategory::kBuffers, MemoryCategory::kHost})
    bytes[category] = std::max(bytes[category], account_->peak(category));
  bytes.peak = account_->peak_total();
  return bytes;
}

std::string doing_text(const program::Action& action, const program::Layout& layout) {
  const int layer = action.layer >= 0 || action.unit < 0 ? action.layer : layout.layer_of(action.unit);
  const program::KindWords& words = program::words_of(action.kind);
  std::string text(words.verb.empty() ? words.name : words.verb);
  if (layer >= 0) text += cat(" of ", arch::layer_table(layout.model).at(static_cast<size_t>(layer)).name);
  if (action.bucket >= 0) text += cat(" of bucket ", action.bucket);
  if (action.microbatch >= 0) text += cat(", microbatch ", action.microbatch);
  return text;
}

void rethrow_out_of_memory(const program::Layout& layout, int rank, const std::string& doing,
                           const program::MemoryBytes& measured) {
  const std::string who = cat("rank ", rank, " (", layout.mesh.describe(rank), ")");
  const auto error = [&](const char* code, const std::string& told) {
    return OutOfMemory({.code = code, .what = cat(who, told)}, measured);
  };
  try {
    throw;
  } catch (const DeviceLimitReached& full) {
    throw error("LS4001", cat(" out of memory: ", doing, " asked ", bytes_text(full.asked), ", ", bytes_text(full.free),
                              " free of memory.device_limit = ", bytes_text(full.limit)));
  } catch (const c10::OutOfMemoryError& none) {
    throw error("LS4002", cat(" got no more memory for ", doing, ": ", none.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    throw error("LS4002", cat(" got no more memory for ", doing, ": the host has none"));
  }
}

}  // namespace lockstep::engine
