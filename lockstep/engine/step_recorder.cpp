#include "lockstep/engine/step_recorder.h"

#include <time.h>

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "lockstep/program/effects.h"
#include "lockstep/program/planned_calls.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::engine {
namespace {

using program::Action;

// Of this thread: a rank's progress threads may share its core, and what they do is no part of the engine's way.
double seconds_on_core() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

StepRecorder::StepRecorder(const program::Layout& layout, const program::Program& program, Groups& groups,
                           const ExposedWaits& waits, Clock::time_point start)
    : layout_(layout), program_(program), groups_(groups), waits_(waits), start_(start) {
  for (const auto& [name, group] : groups_.all()) group->time_calls();
  trace_.rank = groups_.rank();
  trace_.world_size = layout.mesh.world_size();
  trace_.actions = static_cast<int>(program.list(trace_.rank).size());
  trace_.records.reserve(static_cast<size_t>(trace_.actions));
}

void StepRecorder::begin() {
  entered_ = begun_ = Clock::now();
  entered_cpu_ = begun_cpu_ = seconds_on_core();
  waited_before_ = waits_.total();
  waited_ = 0;
}

void StepRecorder::ready() {
  begun_ = Clock::now();
  begun_cpu_ = seconds_on_core();
  waited_ = waits_.total() - waited_before_;
}

void StepRecorder::end(size_t action) {
  const Clock::time_point now = Clock::now();
  const bool hands_over = program::is_transfer(program_.list(trace_.rank)[action].kind);
  if (hands_over) waited_ = waits_.total() - waited_before_;
  const double own = seconds(hands_over ? now : begun_) - seconds(entered_) - waited_;
  const double on_core = (hands_over ? seconds_on_core() : begun_cpu_) - entered_cpu_;
  const double between = ended_ ? seconds(entered_) - seconds(*ended_) : 0;
  trace_.records.push_back({.action = static_cast<int>(action),
                            .start = seconds(begun_),
                            .end = seconds(now),
                            .overhead = between + std::max(0.0, std::min(own, on_core))});
  ended_ = Clock::now();
}

// Calls of one id follow each other in the order of the list.
plan::StepTrace StepRecorder::finish(int64_t step) {
  trace_.step = step;
  program::CallTable planned(layout_, program_, trace_.rank);
  std::map<program::CallId, std::deque<comm::TimedCall>> calls;
  for (const auto& [name, group] : groups_.all())
    for (comm::TimedCall& call : group->take_times()) calls[call.id].push_back(std::move(call));
  const std::vector<Action>& actions = program_.list(trace_.rank);
  for (plan::ActionRecord& record : trace_.records) {
    bool first = true;
    const Action& action = actions[static_cast<size_t>(record.action)];
    if (program::computes(action.kind)) continue;
    for (const program::PlannedCall& call : planned.of(action)) {
      std::deque<comm::TimedCall>& timed = calls[call.id];
      if (timed.empty()) continue;
      record.start = first ? seconds(timed.front().entered) : std::min(record.start, seconds(timed.front().entered));
      record.end = first ? seconds(timed.front().left) : std::max(record.end, seconds(timed.front().left));
      first = false;
      timed.pop_front();
    }
  }
  return std::move(trace_);
}

}  // namespace lockstep::engine
