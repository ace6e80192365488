// Qi et al. 2023, section 2.3: as 1F1B, but W of a microbatch waits until nothing else can run.
#include "lockstep/program/passes/schedule_lists.h"

namespace lockstep::program {

// F runs `ahead` of I, and I runs `behind` W: together they are the same on every rank, and so is the memory.
std::vector<Action> zero_bubble(const ScheduleInput& input, int rank, bool twice) {
  const int laps = twice ? 2 : 1;
  const int ahead = laps * (input.ranks - 1 - rank), behind = laps * rank;
  StageList list(input.ranks, input.microbatches);
  for (int pass = 0; pass < input.microbatches + ahead + behind; ++pass) {
    if (pass < input.microbatches) list.forward(rank);
    if (pass >= ahead && list.inputs(rank) < input.microbatches) list.input(rank);
    if (pass >= ahead + behind) list.weight(rank);
  }
  return list.take();
}

}  // namespace lockstep::program
