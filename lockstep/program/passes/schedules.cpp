#include "lockstep/program/passes/schedules.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/program/passes/schedule_file.h"
#include "lockstep/program/passes/schedule_lists.h"

namespace lockstep::program {
namespace {

// `ahead` forwards, then forward and backward in turns; the stages of a rank take turns too, `ranks` microbatches at a time.
std::vector<Action> in_turns(const ScheduleInput& input, int rank, int ahead) {
  const int ranks = input.ranks, laps = input.virtual_stages, all = input.microbatches * laps;
  StageList list(ranks * laps, input.microbatches);
  const auto lap = [&](int pass) { return pass / ranks % laps; };  // of the forward of this number
  for (int pass = 0; pass < all + ahead; ++pass) {
    if (pass < all) list.forward(lap(pass) * ranks + rank);
    if (pass >= ahead) list.backward((laps - 1 - lap(pass - ahead)) * ranks + rank);
  }
  return list.take();
}

// As 1F1B, but W of a microbatch waits until nothing else can run. F runs `ahead` of I, and I runs `behind` W: together they are the
// same on every rank, and so is the memory: up to `ranks` microbatches in flight, or with two laps 2 * ranks - 1.
std::vector<Action> zero_bubble(const ScheduleInput& input, int rank, int laps) {
  const int ahead = laps * (input.ranks - 1 - rank), behind = laps * rank;
  StageList list(input.ranks, input.microbatches);
  for (int pass = 0; pass < input.microbatches + ahead + behind; ++pass) {
    if (pass < input.microbatches) list.forward(rank);
    if (pass >= ahead && list.inputs(rank) < input.microbatches) list.input(rank);
    if (pass >= ahead + behind) list.weight(rank);
  }
  return list.take();
}

std::vector<Action> list_of(const ScheduleInput& input, int rank) {
  // One stage in all: nothing to turn at.
  const bool alone = input.ranks == 1 && input.virtual_stages == 1;
  const int below = input.ranks - 1 - rank, all = input.microbatches * input.virtual_stages;
  switch (input.kind) {
    case ScheduleKind::kNaive:
      return in_turns(input, rank, 0);
    case ScheduleKind::kGPipe:
      return in_turns(input, rank, all);
    case ScheduleKind::kOneFOneB:
      return in_turns(input, rank, std::min(all, below));
    case ScheduleKind::kInterleaved:
      return in_turns(input, rank, std::min(all, 2 * below + (input.virtual_stages - 1) * input.ranks));
    case ScheduleKind::kZbH1:
      return zero_bubble(input, rank, 1);
    case ScheduleKind::kZbH2:
      return zero_bubble(input, rank, 2);
    case ScheduleKind::kZbV:
      return alone ? zero_bubble(input, rank, 1) : zb_v(input, rank);
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

std::vector<std::vector<Action>> make_schedule(const ScheduleInput& input) {
  for (const config::LayoutProblem& problem : schedule_problems(input)) LOCKSTEP_CHECK(false, problem.what);
  if (input.kind == ScheduleKind::kFile) return read_grid(input.grid).ranks;
  std::vector<std::vector<Action>> ranks;
  for (int rank = 0; rank < input.ranks; ++rank) ranks.push_back(list_of(input, rank));
  return ranks;
}

}  // namespace lockstep::program
