// The orders in which the ranks of a pipeline run their stages: pure functions of a few numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/config/suggestion.h"
#include "lockstep/program/pipeline.h"
#include "lockstep/program/program.h"

namespace lockstep::program {

struct ScheduleInput {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  int ranks = 1;           // of the axis pp
  int virtual_stages = 1;
  int microbatches = 1;
  std::string grid{};      // kFile
  int64_t sequences = 1;   // of a microbatch on all data ranks: to name a global batch in a way out
};

// That of the layout; without `sequences`.
ScheduleInput schedule_of(const Layout& layout);

// F, B, I and W of whole stages (Action::stage, microbatch), a list for each pipeline rank.
//   naive        one microbatch after the other through all stages and back: one stage is busy at a time
//   gpipe        all F, then all B (Huang et al. 2019)
//   1f1b         warm-up, then F and B in turns (Narayanan et al. 2019, 2021: PipeDream-Flush)
//   interleaved  the same over several stages of a rank (Narayanan et al. 2021, section 2.2)
//   zb-h1, zb-h2 backward in two parts, W fills bubbles; memory of 1f1b, or twice that and no bubble (Qi et al. 2023)
//   zb-v         two stages a rank, V-shaped (Qi et al. 2024)
//   dualpipe-v   two stages a rank, V-shaped, F of one beside B of the other (DeepSeek-AI 2024; Cut-in-half of 2025)
//   file         a grid in CSV as torch.distributed.pipelining writes it, a row for every rank: schedule_file.h
// The backward passes of a stage come in ascending order of microbatches in all that are generated, and so do the weight
// gradients: sums over microbatches are in one order. A grid sums in the order that it states. InternalError where
// schedule_problems() finds any.
std::vector<std::vector<Action>> make_schedule(const ScheduleInput& input);

// What cannot be, with the equation and the nearest values that work; empty = all well. What is wrong within a grid is mended
// in its file.
std::vector<config::LayoutProblem> schedule_problems(const ScheduleInput& input);

}  // namespace lockstep::program
