// Two stages a rank, the second on the way back: what goes down the ranks and what comes up meet on each of them.
#include <algorithm>

#include "lockstep/program/passes/schedule_lists.h"

namespace lockstep::program {
namespace {

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

}  // namespace

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

}  // namespace lockstep::program
