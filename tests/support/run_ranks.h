// N ranks as threads of the test over shared memory.
#pragma once

#include <ATen/Parallel.h>

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/launch/shared_region.h"

namespace lockstep::testing {

struct RunRanksOptions {
  std::chrono::milliseconds deadline{20000};  // of every wait for a peer
  std::chrono::seconds limit{120};            // for all: past it the test program is ended
  std::shared_ptr<comm::Stager> stager{};     // of all communicators
};

// Runs `body` on n ranks, each with one ATen thread, and returns when all have ended. Where one throws, the others are
// released and the first exception is thrown here.
inline void run_ranks(int n, const std::function<void(comm::World&)>& body, RunRanksOptions options = {}) {
  const auto region =
      std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(n)));
  std::mutex mutex;
  std::exception_ptr first;
  const auto fail = [&](comm::World& world, const char* what) {
    {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    }
    world.abort(what);
  };
  const auto run = [&](int rank) {
    at::set_num_threads(1);
    comm::SharedMemoryWorld world(region, rank, n, {.deadline = options.deadline, .stager = options.stager});
    try {
      body(world);
    } catch (const std::exception& error) {
      fail(world, error.what());
    }
  };
  std::vector<std::thread> threads;
  std::vector<std::future<void>> ended;
  for (int rank = 0; rank < n; ++rank) {
    std::packaged_task<void()> task([&run, rank] { run(rank); });
    ended.push_back(task.get_future());
    threads.emplace_back(std::move(task));
  }
  const auto end = std::chrono::steady_clock::now() + options.limit;
  for (int rank = 0; rank < n; ++rank)
    if (ended[static_cast<size_t>(rank)].wait_until(end) != std::future_status::ready) {
      // A thread cannot be ended from outside, and the test runner would wait for ever.
      std::fprintf(stderr, "run_ranks: rank %d of %d has not ended after %lld s\n", rank, n,
                   static_cast<long long>(options.limit.count()));
      std::abort();
    }
  for (std::thread& thread : threads) thread.join();
  for (std::future<void>& result : ended) result.get();
  if (first) std::rethrow_exception(first);
}

}  // namespace lockstep::testing
