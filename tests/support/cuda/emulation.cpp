#include "emulation.h"

#include <atomic>
#include <string>
#include <utility>

#include "machine.h"

namespace lockstep::emulation {
namespace {

// Of one thread of the host.
struct Host {
  Machine machine;
  cudaError_t last = cudaSuccess;
  std::string found;
};

Host& host() {
  static thread_local Host of_this_thread;
  return of_this_thread;
}

std::atomic<BeforeLaunch> before_launch = nullptr;

}  // namespace

void set_order(const Order& order) { host().machine.set_order(order); }
void set_before_launch(BeforeLaunch before) { before_launch = before; }

cudaError_t launch(const cudaLaunchConfig_t& grid, const std::function<void()>& thread) {
  if (const BeforeLaunch before = before_launch) before(grid.stream);
  Host& here = host();
  try {
    here.machine.run(grid, thread);
    here.last = cudaSuccess;
  } catch (const Found& found) {
    here.machine.clear();
    here.last = found.code;
    here.found = found.what();
  }
  return here.last;
}

void barrier(const std::source_location& where) { host().machine.wait_at_barrier(where); }
void shuffle_down(const ShuffleDown& call, void* value, size_t size) { host().machine.exchange(call, value, size); }
void* Shared::of_block() const { return host().machine.shared().of(*this); }

}  // namespace lockstep::emulation

const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaSuccess ? "no error" : lockstep::emulation::host().found.c_str();
}

cudaError_t cudaGetLastError() { return std::exchange(lockstep::emulation::host().last, cudaSuccess); }
