// What a run does beside its steps: log, compare replicas, evaluate, save. Each is a policy that answers when it is due; the
// trainer asks all of them in one order, on every rank alike.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "lockstep/engine/executor.h"

namespace lockstep::train {

// What a checkpoint must remember of a run beside its tensors.
struct RunPosition {
  int64_t step = 0;  // optimizer steps done
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
};

// A step that has run. While `result` is pending its loss, tokens and norm are not known (Executor::step).
struct StepRecord {
  int64_t step = 0;  // counted from 1
  double lr = 0;
  double seconds = 0;
  double data_seconds = 0;  // of them, for the batch
  double model_flops = 0;   // of the global batch
  engine::StepResult result{};
};

class StepPolicy {
 public:
  virtual ~StepPolicy() = default;
  // Whether it acts on step `step`, counted from 1: the step is then not left pending.
  virtual bool due(int64_t step) const = 0;
  // A step whose outcome is known, each in its order; one that was pending comes after the next has run.
  virtual void known(const StepRecord& /*record*/, const RunPosition& /*at*/) {}
  // Nothing is pending behind step at.step: parameters may be read. Called whether it is due or not.
  virtual void settled(const RunPosition& /*at*/) {}
};

using Time = std::chrono::steady_clock::time_point;
using Now = std::function<Time()>;  // tests make up theirs

inline double seconds_since(Time begin, Time now = std::chrono::steady_clock::now()) {
  return std::chrono::duration<double>(now - begin).count();
}

// Rings `seconds` after `start`, and from then on; never without.
struct Timer {
  std::optional<double> seconds{};
  Time start{};
  bool rings(Time now) const { return seconds && seconds_since(start, now) >= *seconds; }
};

}  // namespace lockstep::train
