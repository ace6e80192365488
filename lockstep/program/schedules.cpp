#include "lockstep/program/schedules.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::program {
namespace {

std::vector<Action> naive(int stage, int microbatches) {
  std::vector<Action> actions;
  for (int m = 0; m < microbatches; ++m) {
    actions.push_back({.kind = ActionKind::kForward, .stage = stage, .microbatch = m});
    actions.push_back({.kind = ActionKind::kBackward, .stage = stage, .microbatch = m});
  }
  return actions;
}

// `ahead` forwards, then forward and backward in turns.
std::vector<Action> in_turns(int stage, int microbatches, int ahead) {
  std::vector<Action> actions;
  for (int m = 0; m < microbatches + ahead; ++m) {
    if (m < microbatches) actions.push_back({.kind = ActionKind::kForward, .stage = stage, .microbatch = m});
    if (m >= ahead) actions.push_back({.kind = ActionKind::kBackward, .stage = stage, .microbatch = m - ahead});
  }
  return actions;
}

}  // namespace

std::vector<std::vector<Action>> make_schedule(const ScheduleInput& input) {
  std::vector<std::vector<Action>> ranks;
  for (int rank = 0; rank < input.ranks; ++rank) {
    switch (input.kind) {
      case ScheduleKind::kNaive:
        ranks.push_back(naive(rank, input.microbatches));
        break;
      case ScheduleKind::kGPipe:
        ranks.push_back(in_turns(rank, input.microbatches, input.microbatches));
        break;
      case ScheduleKind::kOneFOneB:
        ranks.push_back(in_turns(rank, input.microbatches, std::min(input.microbatches, input.ranks - 1 - rank)));
        break;
      default:
        LOCKSTEP_CHECK(false, "no schedule ", schedule_name(input.kind));
    }
  }
  return ranks;
}

std::vector<ScheduleProblem> schedule_problems(const ScheduleInput&) { return {}; }

}  // namespace lockstep::program
