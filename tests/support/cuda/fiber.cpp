// glibc's checked longjmp takes a jump between stacks for an error.
#undef _FORTIFY_SOURCE
#include "fiber.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <mutex>
#include <system_error>

#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace lockstep::emulation {
namespace {

constexpr size_t kStack = 128 << 10;
constexpr size_t kSignalStack = 64 << 10;

// The last: what code compiled with -fsanitize-undefined-trap-on-error comes to.
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL};
struct sigaction before[std::size(kSignals)];  // what they did

thread_local Fibers* resuming = nullptr;  // whose fiber runs

// How a fiber came back.
enum Back { kSuspended = 1, kFault = 2 };

bool writes(const ucontext_t& context) {
#if defined(__x86_64__)
  return context.uc_mcontext.gregs[REG_ERR] & 2;
#else
  static_cast<void>(context);
  return false;
#endif
}

// A function of its own: what it returns to twice has no other variables.
__attribute__((noinline)) void jump(sigjmp_buf& from, sigjmp_buf& to) {
  if (sigsetjmp(from, 0) == 0) siglongjmp(to, kSuspended);
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)
void Fibers::leave_to(Fiber* fiber) { __sanitizer_start_switch_fiber(&home_fake_stack_, fiber->stack, kStack); }
void Fibers::leave_for_home(bool for_ever) {
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &running_->fake_stack, home_stack_, home_size_);
}
void Fibers::arrive(void* fake_stack) {
  const void* stack = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &stack, &size);
  if (running_) {  // on a fiber, from home
    home_stack_ = stack;
    home_size_ = size;
  }
}
#else
void Fibers::leave_to(Fiber*) {}
void Fibers::leave_for_home(bool) {}
void Fibers::arrive(void*) {}
#endif

Fibers::~Fibers() {
  discard();
  if (!signal_stack_) return;
  const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
  sigaltstack(&none, nullptr);
}

void Fibers::discard() {
  for (const std::unique_ptr<Fiber>& fiber : all_) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(fiber->stack, kStack);
#endif
    munmap(fiber->stack, kStack);
  }
  all_.clear();
  idle_.clear();
}

Fibers::Fiber* Fibers::take() {
  if (idle_.empty()) {
    void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "the stack of a fiber");
    all_.push_back(std::make_unique<Fiber>());
    all_.back()->stack = static_cast<std::byte*>(stack);
    mprotect(stack, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE);
    idle_.push_back(all_.back().get());
  }
  Fiber* const fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

void Fibers::enter(unsigned low, unsigned high) {
  Fibers& fibers = *reinterpret_cast<Fibers*>(static_cast<uintptr_t>(low) | static_cast<uintptr_t>(high) << 32);
  fibers.arrive(nullptr);
  for (;;) fibers.work_(fibers.argument_);
}

void Fibers::start(Fiber* fiber) {
  fiber->started = true;
  getcontext(&fiber->begin);
  fiber->begin.uc_stack = {.ss_sp = fiber->stack, .ss_flags = 0, .ss_size = kStack};
  fiber->begin.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&fiber->begin, reinterpret_cast<void (*)()>(&Fibers::enter), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(self >> 32));
  setcontext(&fiber->begin);
}

// A function of its own, as jump().
int Fibers::go(Fiber* fiber) {
  const int back = sigsetjmp(home_, 0);
  if (back != 0) return back;
  if (!fiber->started) start(fiber);
  siglongjmp(fiber->place, 1);
}

std::optional<Fault> Fibers::resume(Fiber* fiber) {
  if (!ready_for_faults_) make_ready_for_faults();
  resuming = this;
  running_ = fiber;
  leave_to(fiber);
  const int back = go(fiber);
  running_ = nullptr;
  resuming = nullptr;
  arrive(home_fake_stack_);
  if (back == kFault) return fault_;
  return std::nullopt;
}

void Fibers::suspend() {
  Fiber* const self = running_;
  leave_for_home(false);
  jump(self->place, home_);
  arrive(self->fake_stack);
}

// On the signal stack. The thread goes on at home: what the fiber had begun is lost.
void Fibers::on_fault(int signal, siginfo_t* info, void* context) {
  if (!resuming) {  // none of ours: the instruction runs again, and finds who was there before
    sigaction(signal, &before[std::ranges::find(kSignals, signal) - std::begin(kSignals)], nullptr);
    return;
  }
  Fibers& fibers = *resuming;
  fibers.fault_ = {.trapped = signal == SIGILL,
                   .address = reinterpret_cast<uintptr_t>(info->si_addr),
                   .write = writes(*static_cast<const ucontext_t*>(context))};
  fibers.leave_for_home(true);
  siglongjmp(fibers.home_, kFault);
}

void Fibers::make_ready_for_faults() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = &Fibers::on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before[i]);
  });
  ready_for_faults_ = true;
  stack_t there{};
  sigaltstack(nullptr, &there);
  if (!(there.ss_flags & SS_DISABLE)) return;
  signal_stack_ = std::make_unique<std::byte[]>(kSignalStack);
  const stack_t ours{.ss_sp = signal_stack_.get(), .ss_flags = 0, .ss_size = kSignalStack};
  sigaltstack(&ours, nullptr);
}

}  // namespace lockstep::emulation
