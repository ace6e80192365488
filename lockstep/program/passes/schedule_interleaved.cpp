// Narayanan et al. 2021, section 2.2: the stages of a rank take turns, `ranks` microbatches at a time.
#include <algorithm>

#include "lockstep/program/passes/schedule_lists.h"

namespace lockstep::program {

std::vector<Action> interleaved(const ScheduleInput& input, int rank) {
  const int ranks = input.ranks, laps = input.virtual_stages, all = input.microbatches * laps;
  const int ahead = std::min(all, 2 * (ranks - 1 - rank) + (laps - 1) * ranks);
  StageList list(ranks * laps, input.microbatches);
  const auto lap = [&](int pass) { return pass / ranks % laps; };  // of the forward of this number
  for (int pass = 0; pass < all + ahead; ++pass) {
    if (pass < all) list.forward(lap(pass) * ranks + rank);
    if (pass >= ahead) list.backward((laps - 1 - lap(pass - ahead)) * ranks + rank);
  }
  return list.take();
}

}  // namespace lockstep::program
