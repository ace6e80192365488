#include "support/gpu/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <string_view>

namespace lockstep::testing::gpu {
namespace {

constexpr size_t kRange = size_t{1} << 38;  // addresses; memory is taken when it is written
constexpr size_t kStep = size_t{4} << 20;   // the part that is in use grows by: whole large pages

struct Arena {
  std::mutex mutex;
  std::byte* base = nullptr;
  size_t end = 0;                  // of the part in use: what is opened and closed
  size_t top = 0;                  // of what was ever taken
  std::map<size_t, size_t> holes;  // below it, by offset: bytes
  int open = 0;
};

void report(int signal, siginfo_t* info, void*);

// Never destroyed: tensors of static lifetime may outlive it.
Arena& arena() {
  static auto* all = [] {
    auto* made = new Arena;
    void* range = mmap(nullptr, kRange + kStep, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    const auto begin = (reinterpret_cast<uintptr_t>(range) + kStep - 1) / kStep * kStep;
    made->base = reinterpret_cast<std::byte*>(begin);
    madvise(made->base, kRange, MADV_HUGEPAGE);  // quicker where the kernel has them
    struct sigaction action {};
    action.sa_sigaction = &report;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    return made;
  }();
  return *all;
}

// The instruction runs again and ends the process.
void report(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr), base = reinterpret_cast<uintptr_t>(arena().base);
  constexpr std::string_view kTold = "emulated GPU: the host reads or writes the device's memory by its pointer\n";
  if (address - base < kRange && write(STDERR_FILENO, kTold.data(), kTold.size()) < 0) return;  // and comes back here
  std::signal(signal, SIG_DFL);
}

void protect(Arena& a, size_t begin, size_t end) {
  if (begin < end) mprotect(a.base + begin, end - begin, a.open > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

// The first hole that is large enough, else above all.
size_t place_for(Arena& a, size_t bytes) {
  for (auto hole = a.holes.begin(); hole != a.holes.end(); ++hole) {
    if (hole->second < bytes) continue;
    const auto [offset, size] = *hole;
    a.holes.erase(hole);
    if (size > bytes) a.holes.emplace(offset + bytes, size - bytes);
    return offset;
  }
  if (a.top + bytes > kRange) throw std::bad_alloc();
  const size_t offset = a.top, end = a.end;
  a.top += bytes;
  while (a.end < a.top) a.end += kStep;
  protect(a, end, a.end);
  return offset;
}

}  // namespace

DeviceAccess::DeviceAccess() {
  Arena& a = arena();
  const std::lock_guard lock(a.mutex);
  if (a.open++ == 0) protect(a, 0, a.end);
}

DeviceAccess::~DeviceAccess() {
  Arena& a = arena();
  const std::lock_guard lock(a.mutex);
  if (--a.open == 0) protect(a, 0, a.end);
}

void* take_device_memory(size_t bytes) {
  Arena& a = arena();
  const std::lock_guard lock(a.mutex);
  return a.base + place_for(a, bytes);
}

void give_back_device_memory(void* memory, size_t bytes) {
  Arena& a = arena();
  const std::lock_guard lock(a.mutex);
  const auto offset = static_cast<size_t>(static_cast<std::byte*>(memory) - a.base);
  const auto [hole, fresh] = a.holes.emplace(offset, bytes);
  const auto after = std::next(hole);
  if (after != a.holes.end() && hole->first + hole->second == after->first) {
    hole->second += after->second;
    a.holes.erase(after);
  }
  if (hole == a.holes.begin()) return;
  const auto before = std::prev(hole);
  if (before->first + before->second != hole->first) return;
  before->second += hole->second;
  a.holes.erase(hole);
}

}  // namespace lockstep::testing::gpu
