// When the actions of a step ran on this rank, as plan/ draws it.
#pragma once

#include <chrono>
#include <cstddef>

#include "lockstep/engine/groups.h"
#include "lockstep/plan/step_trace.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

class StepRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  // Times are counted from `start`, one moment for all ranks. From here on the groups keep the times of their calls.
  StepRecorder(const program::Layout& layout, const program::Program& program, Groups& groups, Clock::time_point start);

  // An action begins; what it uses is there; it has been run.
  void begin() { begun_ = Clock::now(); }
  void ready() { begun_ = Clock::now(); }
  void end(size_t action);

  // With the calls that actions made; collective over nothing, but waits for this rank's calls in flight.
  plan::StepTrace finish(int64_t step);

 private:
  double seconds(Clock::time_point time) const { return std::chrono::duration<double>(time - start_).count(); }

  const program::Layout& layout_;
  const program::Program& program_;
  Groups& groups_;
  const Clock::time_point start_;
  Clock::time_point begun_{};
  plan::StepTrace trace_;
};

}  // namespace lockstep::engine
