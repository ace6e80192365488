// The program by which a layout is judged that nobody runs: not proved, and a long step read off shorter ones.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

struct MadeStep {
  Layout layout;
  Program program;
  int64_t left_out = 0;  // microbatches that the step judged has more
};

// Under way every microbatch is taken up like the one before it, `ranks` at a time where the schedule is interleaved: a long step is
// a shorter one with more of them in its middle. What is there at a time is the same but for what MemoryWalk adds by formula:
// the tokens of those left out and, from the middle on, their losses. Two steps are made; what they disagree about is made whole.
struct JudgedSteps {
  std::vector<MadeStep> made;  // the step itself, or those two, the shorter first

  const MadeStep& first() const { return made.front(); }
  // Of a sum over the step's actions, to which every microbatch adds the same.
  template <typename Sum>
  double sum_of_step(const Sum& sum) const {
    const MadeStep& last = made.back();
    const double of_last = sum(last);
    if (last.left_out == 0) return of_last;
    return of_last + (of_last - sum(first())) / static_cast<double>(first().left_out - last.left_out) * static_cast<double>(last.left_out);
  }
};

// F and B of the different lists above which a step is long: what can be made and judged within milliseconds.
inline constexpr int64_t kLongStep = int64_t{1} << 13;
JudgedSteps judged_steps(const Layout& layout, int64_t long_step = kLongStep);

}  // namespace lockstep::program
