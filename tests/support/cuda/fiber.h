// Fibers of one thread of the host: stacks between which that thread jumps. They do the same work again and again, so that a
// fiber whose work is done is given the next.
#pragma once

#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ucontext.h>

namespace lockstep::emulation {

// An access to memory that is not there or may not be written, or one that compiled-in checks have caught (`trapped`).
struct Fault {
  bool trapped;
  uintptr_t address;
  bool write;
};

class Fibers {
 public:
  struct Fiber {
    std::byte* stack = nullptr;  // with an inaccessible page at its lower end
    sigjmp_buf place;
    ucontext_t begin;
    void* fake_stack = nullptr;  // AddressSanitizer's
    bool started = false;
  };

  // work(argument) is called on each fiber again when it returns; it suspends itself in between.
  Fibers(void (*work)(void*), void* argument) : work_(work), argument_(argument) {}
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  Fiber* take();             // one that does nothing
  void give_back(Fiber* fiber) { idle_.push_back(fiber); }
  // Runs the fiber until it suspends itself, or until it touches what it must not.
  std::optional<Fault> resume(Fiber* fiber);
  void suspend();            // of the fiber that runs: back to who resumed it
  void discard();            // all of them, wherever they are: what they have begun is never ended

 private:
  static void enter(unsigned low, unsigned high);
  static void on_fault(int signal, siginfo_t* info, void* context);
  void make_ready_for_faults();
  void start(Fiber* fiber);
  __attribute__((noinline)) int go(Fiber* fiber);
  void leave_to(Fiber* fiber);
  void leave_for_home(bool for_ever);
  void arrive(void* fake_stack);

  void (*work_)(void*);
  void* argument_;
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> idle_;
  Fiber* running_ = nullptr;
  sigjmp_buf home_;
  void* home_fake_stack_ = nullptr;
  const void* home_stack_ = nullptr;
  size_t home_size_ = 0;
  Fault fault_{};
  bool ready_for_faults_ = false;
  std::unique_ptr<std::byte[]> signal_stack_;
};

}  // namespace lockstep::emulation
