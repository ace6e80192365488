// A step on the terminal: the text twin of gantt_svg.h.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/spans.h"

namespace lockstep::plan {

struct GridOptions {
  double unit = 1;  // of time in a column
  int width = 120;  // columns of the terminal; longer steps go on below
  std::vector<int> ranks{};  // shown; empty = all
};

// A row per rank, a column per unit: "F0 F1 . . B0 -- W0", -- where the action goes on, . where the rank does not compute. Where
// a rank has several stages a letter says which: "F0a F0b". What begins and ends in one unit beside another is left out.
//   time    0  .  .  .  .  5
//   rank 0  F0 F1 .  .  B0 -- B1 --
std::string grid_text(const program::Program& program, const program::Layout& layout, const Spans& spans,
                      const GridOptions& options = {});

}  // namespace lockstep::plan
