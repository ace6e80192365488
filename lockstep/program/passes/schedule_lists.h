// The generators behind make_schedule, and what they build lists with. Internal to the schedules.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/program/passes/schedules.h"

namespace lockstep::program {

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

// The list of `rank`.
std::vector<Action> zb_v(const ScheduleInput& input, int rank);
std::vector<Action> dualpipe_v(const ScheduleInput& input, int rank);

}  // namespace lockstep::program
