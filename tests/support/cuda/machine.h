// What runs the grids that one thread of the host launches (emulation.h): block after block, in rounds. In a round each
// thread of the block, or of a warp, that can go on runs until it waits or ends; between rounds shuffles and barriers are
// answered.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "emulation.h"
#include "fiber.h"
#include "guarded.h"

namespace lockstep::emulation {

// What ends a launch.
struct Found : std::runtime_error {
  Found(cudaError_t code, const std::string& what) : std::runtime_error(what), code(code) {}
  cudaError_t code;
};

enum class State { kReady, kAtBarrier, kAtShuffle, kEnded };

struct Thread {
  uint3 index{};
  State state = State::kReady;
  Fibers::Fiber* fiber = nullptr;  // from its beginning to its end
  std::source_location where{};    // it waits
  ShuffleDown shuffle{};
  std::array<std::byte, 8> offered{}, received{};
};

// Arrays of the block that runs. Each lies at the end of its pages in one block and at their beginning in the next.
class SharedMemory {
 public:
  void* of(const Shared& array);
  void next_block();

 private:
  std::map<std::pair<const Shared*, bool>, std::unique_ptr<Guarded>> arrays_;
  bool at_end_ = true;
};

class Machine {
 public:
  Machine() : fibers_(&Machine::work, this) {}

  void set_order(const Order& order) { order_ = order; }
  void run(const cudaLaunchConfig_t& grid, const std::function<void()>& kernel);  // throws Found; then:
  void clear() { fibers_.discard(); }

  // By the thread that runs.
  void wait_at_barrier(const std::source_location& where) { wait(State::kAtBarrier, where); }
  void exchange(const ShuffleDown& call, void* value, size_t size);
  SharedMemory& shared() { return shared_; }

 private:
  static void work(void* machine) { static_cast<Machine*>(machine)->run_threads(); }
  void run_threads();
  void wait(State state, const std::source_location& where);

  void run_block();
  void run_warps();
  void run_ready(size_t begin, size_t end);
  bool deliver_shuffles(size_t begin, size_t end);
  bool deliver(size_t of);
  void explain_shuffles() const;
  void release_barrier();
  void put_in_order(std::vector<uint32_t>& numbers) const;

  Thread& current() { return threads_[current_]; }
  const Thread* in_warp_of(size_t thread, int lane) const;
  bool joins(const Thread* other, const Thread& thread) const;

  Fibers fibers_;
  SharedMemory shared_;
  Order order_;
  const std::function<void()>* kernel_ = nullptr;
  std::vector<Thread> threads_;   // of the block
  std::vector<uint32_t> turns_;   // of the round: numbers of threads
  size_t turn_ = 0;
  size_t current_ = 0;
  uint64_t rounds_ = 0;
};

}  // namespace lockstep::emulation
