#include "lockstep/program/passes/schedules.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/program/passes/schedule_file.h"

namespace lockstep::program {
namespace {

// One rank's list. Every action added is of the next microbatch of its stage, so that those ascend. What is of microbatches
// beyond those of the step is counted and left out: an order for many microbatches is one for fewer.
class StageList {
 public:
  StageList(int stages, int microbatches) : microbatches_(microbatches), done_(static_cast<size_t>(stages)) {}

  void forward(int stage) { add(ActionKind::kForward, stage, of(stage).forwards++); }
  void input(int stage) { add(ActionKind::kBackwardInput, stage, of(stage).inputs++); }
  void weight(int stage) { add(ActionKind::kBackwardWeight, stage, of(stage).weights++); }
  // No W of the stage may be waiting.
  void backward(int stage) {
    add(ActionKind::kBackward, stage, of(stage).inputs++);
    of(stage).weights++;
  }

  // How many there were; B is an input and a weight.
  int forwards(int stage) { return of(stage).forwards; }
  int inputs(int stage) { return of(stage).inputs; }
  int weights(int stage) { return of(stage).weights; }

  std::vector<Action> take() { return std::move(actions_); }

 private:
  struct Done {
    int forwards = 0;
    int inputs = 0;
    int weights = 0;
  };
  Done& of(int stage) { return done_[static_cast<size_t>(stage)]; }
  void add(ActionKind kind, int stage, int microbatch) {
    if (microbatch < microbatches_) actions_.push_back({.kind = kind, .stage = stage, .microbatch = microbatch});
  }

  const int microbatches_;
  std::vector<Done> done_;
  std::vector<Action> actions_;
};

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

// Two stages a rank, the second on the way back: what goes down the ranks and what comes up meet on each of them.
// Both orders are those of a full pipeline; of fewer microbatches they leave the later ones out.
struct Turn {
  Turn(const ScheduleInput& input, int place)
      : ranks(input.ranks),
        rank(place),
        microbatches(std::max(input.microbatches, 2 * ranks)),
        down(place),
        up(2 * ranks - 1 - place),
        list(2 * ranks, input.microbatches) {}

  void input_and_weight(int stage) {
    list.input(stage);
    list.weight(stage);
  }
  // All that is left of W, in the order in which backward came by.
  void weights() {
    for (const int stage : {up, down})
      while (list.weights(stage) < microbatches) list.weight(stage);
  }

  const int ranks, rank, microbatches;
  const int down, up;  // the rank's stages
  StageList list;
};

// Qi et al. 2024 (Pipeline Parallelism with Controllable Memory), ZB-V: never more than 2 * ranks stage inputs in flight.
std::vector<Action> zb_v(const ScheduleInput& input, int rank) {
  Turn turn(input, rank);
  auto& [ranks, place, count, down, up, list] = turn;
  // Until the first microbatch is back on its way up there is time for this many.
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) list.forward(down);
  // Until it comes by as backward.
  for (int i = 0; i < rank; ++i) {
    list.forward(up);
    list.forward(down);
  }
  // Until it has turned again.
  for (int i = 0; i < ranks - rank; ++i) {
    list.forward(up);
    turn.input_and_weight(up);
  }
  while (list.forwards(up) < count) {
    if (list.forwards(down) < count) list.forward(down);
    turn.input_and_weight(down);
    list.forward(up);
    turn.input_and_weight(up);
  }
  // The beginning mirrored: inputs at the pace at which they come, W in the gaps and behind.
  while (list.inputs(up) < count) {
    list.input(down);
    list.input(up);
  }
  while (list.inputs(down) < count) {
    list.input(down);
    list.weight(list.weights(up) < count ? up : down);
  }
  turn.weights();
  return list.take();
}

// DualPipeV (DeepSeek-AI 2025; the upper half of DualPipe of DeepSeek-AI 2024, folded): forward of one direction beside
// backward of the other, whole in between, in two parts while the pipeline fills and empties.
std::vector<Action> dualpipe_v(const ScheduleInput& input, int rank) {
  Turn turn(input, rank);
  auto& [ranks, place, count, down, up, list] = turn;
  const int below = ranks - 1 - rank;
  for (int i = 0; i < 2 * below; ++i) list.forward(down);
  for (int i = 0; i <= rank; ++i) {
    list.forward(down);
    list.forward(up);
  }
  for (int i = 0; i < below; ++i) {
    turn.input_and_weight(up);
    list.forward(up);
  }
  while (list.forwards(down) < count) {
    list.forward(down);
    list.backward(up);
    list.forward(up);
    list.backward(down);
  }
  while (list.forwards(up) < count) {
    list.backward(up);
    list.forward(up);
    list.backward(down);
  }
  // Half of the last backwards run whole, then W waits.
  for (int i = 0; i <= rank; ++i)
    for (const int stage : {up, down})
      2 * i + (stage == down) <= rank ? list.backward(stage) : list.input(stage);
  while (list.inputs(down) < count) {
    list.weight(list.weights(up) < count ? up : down);
    list.input(down);
  }
  turn.weights();
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
