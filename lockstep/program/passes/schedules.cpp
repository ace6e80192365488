#include "lockstep/program/passes/schedules.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/program/passes/schedule_file.h"
#include "lockstep/program/passes/schedule_lists.h"

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

config::LayoutProblem stages_problem(const ScheduleInput& input, int wanted) {
  std::vector<config::Suggestion> ways = config::values_of("parallel.virtual_stages", {cat(wanted)});
  if (wanted == 1) ways.push_back({.changes = {{"parallel.schedule", "interleaved"}}});
  return {.key = "parallel.virtual_stages",
          .what = cat("virtual_stages(", input.virtual_stages, "), but schedule ", schedule_name(input.kind), " has ",
                      wanted == 1 ? "one stage" : "two stages", " of a rank"),
          .ways = std::move(ways)};
}

}  // namespace

std::vector<config::LayoutProblem> schedule_problems(const ScheduleInput& input) {
  if (input.kind == ScheduleKind::kFile) return grid_problems(read_grid(input.grid), input);
  std::vector<config::LayoutProblem> problems;
  const bool alone = input.ranks == 1 && input.virtual_stages == 1;
  const int stages = v_shaped(input.kind) ? 2 : 1;
  if (input.kind != ScheduleKind::kInterleaved && input.virtual_stages != stages && !alone)
    problems.push_back(stages_problem(input, stages));
  const int left = input.microbatches % input.ranks;
  if (input.kind == ScheduleKind::kInterleaved && left != 0) {
    const char* key = "train.global_batch";
    problems.push_back({.key = key,
                        .what = cat("schedule interleaved: microbatches(", input.microbatches, ") % pp(", input.ranks,
                                    ") = ", left),
                        .ways = config::multiples_near(key, input.ranks * input.sequences, input.microbatches * input.sequences)});
  }
  return problems;
}

int grid_virtual_stages(const std::string& text) {
  const Grid grid = read_grid(text);
  const int rows = static_cast<int>(grid.ranks.size());
  return rows > 0 && grid.stages % rows == 0 ? grid.stages / rows : 0;
}

bool grid_lies_in_v(const std::string& grid) { return grid_in_v(read_grid(grid)); }

std::vector<std::vector<Action>> make_schedule(const ScheduleInput& input) {
  for (const config::LayoutProblem& problem : schedule_problems(input)) LOCKSTEP_CHECK(false, problem.what);
  if (input.kind == ScheduleKind::kFile) return read_grid(input.grid).ranks;
  std::vector<std::vector<Action>> ranks;
  for (int rank = 0; rank < input.ranks; ++rank) ranks.push_back(list_of(input, rank));
  return ranks;
}

}  // namespace lockstep::program
