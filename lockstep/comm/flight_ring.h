// The last calls of one communicator, kept always: what a rank did before something went wrong.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/call_label.h"

namespace lockstep::comm {

// How long a call kept its caller, who may wait for it after it is done.
struct CallWait {
  std::atomic<double> seconds{0};
};

// When a call ran: from when its turn came to when it was done. The last `waited` seconds of that its caller waited for it; of a call
// that the caller's own thread made, all of it and what was before it in the queue.
struct TimedCall {
  program::CallId id{};
  std::chrono::steady_clock::time_point entered{};
  std::chrono::steady_clock::time_point left{};
  double waited = 0;
};

// Thread-safe.
class FlightRing {
 public:
  static constexpr int kCalls = 64;

  // A call begins; its number is handed to leave().
  int64_t enter(const CallLabel& call, int64_t bytes, std::shared_ptr<const CallWait> wait = {});
  void leave(int64_t number);
  // From now on every call is kept with its times, until they are taken.
  void time_calls();
  std::vector<TimedCall> take_times();
  // The last `calls` calls, oldest first, one per line: "  all_reduce #3 'loss', 4 B, entered 1.20 s ago, took 2 ms".
  std::string text(int calls = kCalls) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Flight {
    CallLabel call{};
    int64_t bytes = 0;
    Clock::time_point entered{};
    Clock::time_point left{};  // zero: still inside
    std::shared_ptr<const CallWait> wait{};
  };
  struct Timed {
    TimedCall call{};
    std::shared_ptr<const CallWait> wait{};
  };
  mutable std::mutex mutex_;
  std::array<Flight, kCalls> flights_;
  int64_t count_ = 0;
  bool timing_ = false;
  std::vector<Timed> times_;
};

}  // namespace lockstep::comm
