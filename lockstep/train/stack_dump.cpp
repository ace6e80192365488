#include "lockstep/train/stack_dump.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

constexpr int kFrames = 64;

// What the handler needs. `state` hands the frames over: only one thread at a time fills or reads them.
enum State : int { kIdle, kFilling, kFilled, kClosing };
std::array<void*, kFrames> frames;
int num_frames = 0;
pthread_t interrupted;
void* program_base = nullptr;  // where a whole stack ends: in the program, or in libc for its threads
void* libc_base = nullptr;
std::atomic<int> state{kIdle};
sem_t asked;
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int) {
  const int saved_errno = errno;
  int idle = kIdle;
  if (state.compare_exchange_strong(idle, kFilling)) {
    num_frames = backtrace(frames.data(), kFrames);
    interrupted = pthread_self();
    state = kFilled;
    sem_post(&asked);
  }
  errno = saved_errno;
}

std::string name_of(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || !info.dli_fname) return cat(address);
  const std::string file = std::string(info.dli_fname).substr(std::string(info.dli_fname).rfind('/') + 1);
  if (!info.dli_sname) return cat("? (", file, ")");
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
  return cat(status == 0 ? plain.get() : info.dli_sname, " (", file, ")");
}

// Where the object that holds `address` was loaded; null for code generated at run time.
void* base_of(void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

// Some kernels (oneDNN's generated ones, MKL's) say nothing of who called them: the stack then ends inside a library,
// not where the program or its threads begin.
bool cut_short() {
  void* outermost = num_frames > 0 ? base_of(frames[static_cast<size_t>(num_frames - 1)]) : nullptr;
  return outermost != program_base && outermost != libc_base;
}

// Without the handler and the frame by which the kernel called it.
std::string stack_text() {
  std::string text;
  for (int i = 2; i < num_frames; ++i) text += cat("  ", name_of(frames[static_cast<size_t>(i)]), "\n");
  return text;
}

}  // namespace

StackDump::StackDump(Write write) : write_(std::move(write)) {
  // The first call loads what it needs: that allocates, which a handler must not.
  program_base = base_of(frames[static_cast<size_t>(backtrace(frames.data(), kFrames) - 1)]);
  libc_base = base_of(reinterpret_cast<void*>(&::sigaction));
  state = kIdle;
  sem_init(&asked, 0, 0);
  thread_ = std::thread([this] { answer(); });
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, &before_);
}

StackDump::~StackDump() {
  while (state == kFilling) std::this_thread::yield();  // a handler on another thread
  state = kClosing;
  sem_post(&asked);
  thread_.join();
  sigaction(SIGUSR2, &before_, nullptr);  // last: the thread may have asked once more
  sem_destroy(&asked);
}

void StackDump::answer() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for those who compute
  constexpr int kTries = 200;
  int tries = 0;
  for (;;) {
    while (sem_wait(&asked) != 0) {
    }
    if (state == kClosing) return;
    const bool again = cut_short() && ++tries < kTries;
    if (!again) {
      write_(stack_text());
      tries = 0;
    }
    const pthread_t thread = interrupted;
    int filled = kFilled;
    if (!state.compare_exchange_strong(filled, kIdle)) return;  // closing
    if (!again) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    pthread_kill(thread, SIGUSR2);
  }
}

}  // namespace lockstep::train
