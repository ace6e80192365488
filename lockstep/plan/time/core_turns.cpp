#include "lockstep/plan/time/core_turns.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::plan {

double CoreTurns::first_gap(const Core& core, double ready, double seconds) {
  double begin = ready;
  for (const Turn& turn : core) {
    if (turn.end <= begin) continue;
    if (begin + seconds <= turn.begin) break;
    begin = turn.end;
  }
  return begin;
}

double CoreTurns::take(double ready, double seconds) {
  LOCKSTEP_CHECK(!busy_.empty());
  if (seconds <= 0) return ready;
  Core* first = nullptr;
  double begin = 0;
  for (Core& core : busy_) {
    const double here = first_gap(core, ready, seconds);
    if (first && here >= begin) continue;
    first = &core;
    begin = here;
  }
  first->insert(std::ranges::lower_bound(*first, begin, {}, &Turn::begin), {.begin = begin, .end = begin + seconds});
  return begin;
}

void CoreTurns::pass(double time) {
  for (Core& core : busy_) std::erase_if(core, [time](const Turn& turn) { return turn.end <= time; });
}

}  // namespace lockstep::plan
