// What is alive while the actions of one rank run, by category: inside program/ alone, behind memory.h.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/program/matrices.h"
#include "lockstep/program/pending.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::program {

// What comes and goes is what actions touch (effects.h), with the bytes of each resource in its state; beside it the workspace
// inside of an action.
class MemoryWalk {
 public:
  MemoryWalk(const Layout& layout, const Program& program, int rank);

  // Before the first action: what the rank holds all the time, and the tokens of the step.
  const MemoryArray& live() const { return live_; }
  // Walks over one action.
  MemoryPoint step(const Action& action);
  // InternalError where something is kept for a backward that never came, or gathered and never dropped.
  void check_end() const;

 private:
  using Made = std::tuple<Resource, int, int>;  // index, microbatch
  using OfUnit = std::pair<Resource, int>;      // layer that owns it
  using Way = std::pair<int, bool>;             // rank that it leads to, forward; or kToHost
  static constexpr Way kToHost{-1, false};
  int64_t& live(MemoryCategory category) { return live_[static_cast<size_t>(category)]; }
  const arch::LayerCost& cost(int layer) const { return costs_.at(static_cast<size_t>(layer)); }

  void apply(const Touch& touch, const Action& action);
  void apply_made(const Touch& touch, int microbatch);
  void apply_unit(const OfUnit& of, const Touch& touch);
  void change(const MemoryArray& before, const MemoryArray& behind);
  MemoryArray unit_bytes(const OfUnit& of, State state) const;
  MemoryArray made_bytes(Resource what, int index, State state) const;
  std::optional<Way> way_out(const Effects& effects, const Action& action) const;
  void end_earlier(const Way& way);
  void end_sends();
  void stage(const Effects& effects, const Action& action);
  int64_t workspace(const Effects& effects, const Action& action) const;
  int64_t whole_step_bytes(int unit) const;
  int64_t iteration_bytes(int unit) const;
  int64_t sent_copy(const Action& action) const;

  const Layout& layout_;
  const Program& program_;
  int rank_;
  std::vector<arch::ParamSpec> table_;
  std::vector<arch::LayerCost> costs_;
  int shards_ = 1;
  EffectTable effects_;
  MatrixPlan matrices_;
  struct StateBytes {
    int64_t slots = 0, updated = 0, offloaded = 0;
  };
  std::map<int, StateBytes> states_;  // by unit, of its part
  std::map<int, int64_t> units_;  // layer that owns it -> elements
  MemoryArray live_{};
  std::map<Made, State> made_;    // by microbatches: there now
  std::map<OfUnit, State> held_;  // parameters, gradients and states
  std::map<Way, std::deque<int64_t>> leaving_;  // what has left and is still on the device: the last ones of each
  std::map<int, int64_t> staged_;  // bucket -> bytes of gradients on their way
  Pending<int> reducing_;          // the same buckets
};

}  // namespace lockstep::program
