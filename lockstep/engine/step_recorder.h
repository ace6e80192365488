// When the actions of a step ran on this rank, as plan/ draws it.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include "lockstep/engine/step_state.h"
#include "lockstep/plan/step_trace.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

class StepRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  // Times are counted from `start`, one moment for all ranks. From here on the groups keep the times of their calls.
  StepRecorder(const StepView& step, const program::Program& program, Clock::time_point start);

  // An action begins; what it uses is there; it has been run.
  void begin();
  void ready();
  void end(size_t action);

  // With the calls that actions made; collective over nothing, but waits for this rank's calls in flight.
  plan::StepTrace finish();

 private:
  struct Moment {
    Clock::time_point time{};
    double on_core = 0;  // this thread's time on a core
  };
  static Moment now();
  double seconds(Clock::time_point time) const { return std::chrono::duration<double>(time - start_).count(); }

  const StepView step_;
  const program::Program& program_;
  const Clock::time_point start_;
  std::optional<Clock::time_point> ended_;  // the action before
  Moment entered_{}, begun_{};              // the action at hand: begin(), and the last of begin() and ready()
  double waited_before_ = 0;                // ExposedWaits::total() when it was entered
  double waited_ = 0;                       // in it, until it began
  plan::StepTrace trace_;
};

}  // namespace lockstep::engine
