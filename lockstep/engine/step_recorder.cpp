#include "lockstep/engine/step_recorder.h"

#include <time.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace lockstep::engine {

using program::Action;

// Of this thread: a rank's progress threads may share its core, and what they do is no part of the engine's way.
StepRecorder::Moment StepRecorder::now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return {.time = Clock::now(), .on_core = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec)};
}

StepRecorder::StepRecorder(const StepView& step, const program::Program& program, Clock::time_point start)
    : step_(step), program_(program), start_(start) {
  for (const auto& [name, group] : step_.groups.all()) group->time_calls();
  trace_.rank = step_.groups.rank();
  trace_.world_size = step_.layout.mesh.world_size();
  trace_.actions = static_cast<int>(program.list(trace_.rank).size());
  trace_.records.reserve(static_cast<size_t>(trace_.actions));
}

void StepRecorder::begin() {
  entered_ = begun_ = now();
  waited_before_ = step_.waits.total();
  waited_ = 0;
}

void StepRecorder::ready() {
  begun_ = now();
  waited_ = step_.waits.total() - waited_before_;
}

void StepRecorder::end(size_t action) {
  const Moment ended = now();
  const bool hands_over = program::is_transfer(program_.list(trace_.rank)[action].kind);
  if (hands_over) waited_ = step_.waits.total() - waited_before_;
  const Moment& own_until = hands_over ? ended : begun_;
  const double own = seconds(own_until.time) - seconds(entered_.time) - waited_;
  const double on_core = own_until.on_core - entered_.on_core;
  const double between = ended_ ? seconds(entered_.time) - seconds(*ended_) : 0;
  trace_.records.push_back({.action = static_cast<int>(action),
                            .start = seconds(begun_.time),
                            .end = seconds(ended.time),
                            .overhead = between + std::max(0.0, std::min(own, on_core))});
  ended_ = Clock::now();
}

// Calls of one id over one group follow each other in the order of the list.
plan::StepTrace StepRecorder::finish() {
  trace_.step = step_.state.step;
  std::map<std::pair<const comm::Communicator*, program::CallId>, std::deque<comm::TimedCall>> calls;
  for (const auto& [name, group] : step_.groups.all())
    for (comm::TimedCall& call : group->take_times()) calls[{group, call.id}].push_back(std::move(call));
  const std::vector<Action>& actions = program_.list(trace_.rank);
  for (plan::ActionRecord& record : trace_.records) {
    bool first = true;
    const Action& action = actions[static_cast<size_t>(record.action)];
    const bool computes = program::computes(action.kind);
    for (const program::PlannedCall& call : step_.calls.of(action)) {
      std::deque<comm::TimedCall>& timed = calls[{&step_.groups.over(call.group), call.id}];
      if (timed.empty()) continue;
      if (computes) {
        const comm::TimedCall& of = timed.front();
        // Those over experts alone are actions too, elsewhere in the list.
        if (call.group.channel != program::Channel::kExperts)
          trace_.calls.push_back({.action = record.action,
                                  .what = program::call_text(call.id.of_every_owner()),
                                  .start = seconds(of.entered),
                                  .end = seconds(of.left),
                                  .waited = of.waited});
        timed.pop_front();
        continue;
      }
      record.start = first ? seconds(timed.front().entered) : std::min(record.start, seconds(timed.front().entered));
      record.end = first ? seconds(timed.front().left) : std::max(record.end, seconds(timed.front().left));
      first = false;
      timed.pop_front();
    }
  }
  return std::move(trace_);
}

}  // namespace lockstep::engine
