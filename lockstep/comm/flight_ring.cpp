#include "lockstep/comm/flight_ring.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::comm {

int64_t FlightRing::enter(const CallLabel& call, int64_t bytes, std::shared_ptr<const CallWait> wait) {
  const std::lock_guard lock(mutex_);
  flights_[static_cast<size_t>(count_ % kCalls)] = {.call = call, .bytes = bytes, .entered = Clock::now(), .wait = std::move(wait)};
  return count_++;
}

void FlightRing::leave(int64_t number) {
  const std::lock_guard lock(mutex_);
  Flight& flight = flights_[static_cast<size_t>(number % kCalls)];
  flight.left = Clock::now();
  if (timing_) times_.push_back({.call = {.id = flight.call.id, .entered = flight.entered, .left = flight.left}, .wait = flight.wait});
}

void FlightRing::time_calls() {
  const std::lock_guard lock(mutex_);
  timing_ = true;
  times_.clear();
}

std::vector<TimedCall> FlightRing::take_times() {
  const std::lock_guard lock(mutex_);
  timing_ = false;
  std::vector<TimedCall> times;
  for (const Timed& timed : std::exchange(times_, {})) {
    times.push_back(timed.call);
    if (timed.wait) times.back().waited = timed.wait->seconds;
  }
  return times;
}

std::string FlightRing::text(int calls) const {
  const std::lock_guard lock(mutex_);
  const auto seconds = [](Clock::duration time) {
    return format_duration(std::chrono::duration<double>(time).count());
  };
  std::string text;
  for (int64_t i = std::max<int64_t>(0, count_ - std::min(calls, kCalls)); i < count_; ++i) {
    const Flight& flight = flights_[static_cast<size_t>(i % kCalls)];
    text +=
        cat("  ", flight.call.text(), ", ", format_bytes(static_cast<double>(flight.bytes)), ", entered ",
            seconds(Clock::now() - flight.entered), " ago, ",
            flight.left == Clock::time_point{} ? "still inside" : cat("took ", seconds(flight.left - flight.entered)),
            "\n");
  }
  return text;
}

}  // namespace lockstep::comm
