// A schedule from a file: a grid in CSV, a row for every rank. Internal to schedules and layouts.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/passes/schedules.h"

namespace lockstep::program {

// Where an action stands in the file, counted from 1.
struct GridCell {
  int row = 0;
  int column = 0;
};

struct Grid {
  std::vector<std::vector<Action>> ranks{};    // by row
  std::vector<std::vector<GridCell>> cells{};  // of every action
  int stages = 0;                              // the highest named, and one
  int microbatches = 0;
  std::vector<std::string> problems{};         // cells that are no actions
  // The stages of the second lap come back over the rows: which a rank's row names decides.
  bool in_v() const;
  int virtual_stages() const;  // stages of a row; 0 where their number is no multiple of the rows
};

// Cells are STAGE KIND MICROBATCH without spaces, as torch.distributed.pipelining writes them: kinds F, B (or
// FULL_BACKWARD), I and W; "(0F3;7B1)OVERLAP_F_B" is one after the other; an empty cell is idle time, which is not kept.
// Transfers and gathering (SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD) are left out: the passes behind the
// schedule add their own.
Grid read_grid(const std::string& text);

// All that is wrong with the grid itself and beside the layout.
std::vector<config::LayoutProblem> grid_problems(const Grid& grid, const ScheduleInput& input);

}  // namespace lockstep::program
