// The boxes of a drawing, as a walk comes to them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/plan/time/rank_lane.h"
#include "lockstep/program/program.h"

namespace lockstep::plan {

class StepBoxes {
 public:
  // Layout and program outlive it. Nothing is kept unless it is wanted.
  StepBoxes(const program::Layout& layout, const program::Program& program, bool wanted) : layout_(layout), program_(program), wanted_(wanted) {}
  bool wanted() const { return wanted_; }
  void stop() { wanted_ = false; }  // with what begins from here on

  // "F3" of microbatch 3: layers of one stage that follow each other are one box.
  void work(int stage, const program::Action& action, double begin, double end);
  void trip(int stage, const program::Action& action, bool over_nics, double begin, double end);
  // That has taken off, and landed.
  void take_off(int stage, int number, const program::Action& action);
  void land(int stage, int number, const Flight& flight);

  std::vector<TimedBox> take() { return std::move(boxes_); }

 private:
  std::string text(const program::Action& action) const { return program::action_text(action, program_.buckets, layout_.num_layers()); }

  const program::Layout& layout_;
  const program::Program& program_;
  bool wanted_;
  std::vector<TimedBox> boxes_{};
  std::map<std::pair<int, int>, std::string> flying_{};  // by stage and number
};

}  // namespace lockstep::plan
