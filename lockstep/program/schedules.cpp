#include "lockstep/program/schedules.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/program/schedule_lists.h"

namespace lockstep::program {
namespace {

// `ahead` forwards, then forward and backward in turns.
std::vector<Action> in_turns(const ScheduleInput& input, int rank, int ahead) {
  StageList list(input.ranks, input.microbatches);
  for (int pass = 0; pass < input.microbatches + ahead; ++pass) {
    if (pass < input.microbatches) list.forward(rank);
    if (pass >= ahead) list.backward(rank);
  }
  return list.take();
}

std::vector<Action> list_of(const ScheduleInput& input, int rank) {
  // One stage in all: nothing to turn at.
  const bool alone = input.ranks == 1 && input.virtual_stages == 1;
  switch (input.kind) {
    case ScheduleKind::kNaive:
      return in_turns(input, rank, 0);
    case ScheduleKind::kGPipe:
      return in_turns(input, rank, input.microbatches);
    case ScheduleKind::kOneFOneB:
      return in_turns(input, rank, std::min(input.microbatches, input.ranks - 1 - rank));
    case ScheduleKind::kInterleaved:
      return interleaved(input, rank);
    case ScheduleKind::kZbH1:
      return zero_bubble(input, rank, false);
    case ScheduleKind::kZbH2:
      return zero_bubble(input, rank, true);
    case ScheduleKind::kZbV:
      return alone ? zero_bubble(input, rank, false) : zb_v(input, rank);
    case ScheduleKind::kDualPipeV:
      return alone ? in_turns(input, rank, 0) : dualpipe_v(input, rank);
    case ScheduleKind::kFile:
      break;
  }
  throw InternalError(cat("no generator for schedule ", schedule_name(input.kind)));
}

}  // namespace

std::vector<std::vector<Action>> make_schedule(const ScheduleInput& input) {
  std::vector<std::vector<Action>> ranks;
  for (int rank = 0; rank < input.ranks; ++rank) ranks.push_back(list_of(input, rank));
  return ranks;
}

std::vector<ScheduleProblem> schedule_problems(const ScheduleInput&) { return {}; }

}  // namespace lockstep::program
