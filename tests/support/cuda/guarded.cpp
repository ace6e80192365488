#include "guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace lockstep::emulation {
namespace {

constexpr std::byte kAround{0xa5};

thread_local Guarded* newest = nullptr;

size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

// Inaccessible page, pages of the buffer, inaccessible page.
Guarded::Guarded(std::string name, size_t bytes, Options options) : name_(std::move(name)), size_(bytes), next_(newest) {
  const size_t open = std::max<size_t>(1, (bytes + options.away + page() - 1) / page()) * page();
  total_ = open + 2 * page();
  void* pages = mmap(nullptr, total_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::system_error(errno, std::generic_category(), name_);
  pages_ = static_cast<std::byte*>(pages);
  mprotect(pages_ + page(), open, PROT_READ | PROT_WRITE);
  std::fill_n(pages_ + page(), open, kAround);
  data_ = pages_ + page() + (options.side == kBefore ? options.away : open - bytes - options.away);
  newest = this;
}

Guarded::~Guarded() {
  Guarded** link = &newest;
  while (*link != this) link = &(*link)->next_;
  *link = next_;
  munmap(pages_, total_);
}

void Guarded::make_read_only() { mprotect(pages_ + page(), total_ - 2 * page(), PROT_READ); }

std::string Guarded::at(std::ptrdiff_t offset) const {
  return "byte " + std::to_string(offset) + " of `" + name_ + "`, which has " + std::to_string(size_);
}

std::string Guarded::damage() const {
  const std::byte* const end = pages_ + total_ - page();
  for (const std::byte* at = pages_ + page(); at < end; ++at)
    if ((at < data_ || at >= data_ + size_) && *at != kAround) return this->at(at - data_) + ", was written";
  return "";
}

std::string Guarded::whose(uintptr_t address) {
  for (const Guarded* buffer = newest; buffer; buffer = buffer->next_) {
    const auto begin = reinterpret_cast<uintptr_t>(buffer->pages_);
    if (address < begin || address >= begin + buffer->total_) continue;
    return buffer->at(static_cast<std::ptrdiff_t>(address - reinterpret_cast<uintptr_t>(buffer->data_)));
  }
  return "";
}

}  // namespace lockstep::emulation
