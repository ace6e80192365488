#include <algorithm>
#include <utility>

#include "lockstep/program/passes/passes.h"

namespace lockstep::program {
namespace {

using Actions = std::vector<Action>;

config::Pairs pairs_of(const Layout& layout) {
  return config::pairs_of(layout.pipeline.kind, layout.pipeline.ranks, layout.num_microbatches());
}

// What is cut and done in turns: forward, backward (I, or B, with the RECOMPUTE before each), weights.
enum class PassKind { kForward, kBackward, kWeights };
PassKind pass_of(const Action& action) {
  if (work_of(action.kind) == Work::kForward) return PassKind::kForward;
  return work_of(action.kind) == Work::kWeight ? PassKind::kWeights : PassKind::kBackward;
}

// One stage and microbatch, up to what it hands on.
struct Stretch {
  Actions ahead{};   // RECVs, of whatever comes later
  Actions passes{};
  Actions behind{};  // SENDs
  int microbatch() const { return passes.front().microbatch; }
  PassKind pass() const { return pass_of(passes.back()); }
};

class Division {
 public:
  Division(const Layout& layout, const Actions& actions)
      : layout_(layout), pairs_(pairs_of(layout)) {
    for (const Action& action : actions) add(action);
  }

  Actions take() {
    for (size_t i = 0; i < stretches_.size(); ++i) {
      if (i + 1 < stretches_.size() && belong_together(stretches_[i], stretches_[i + 1])) {
        in_turns(stretches_[i], stretches_[i + 1]);
        ++i;
      } else {
        for (const Actions* part : {&stretches_[i].ahead, &stretches_[i].passes, &stretches_[i].behind}) append(*part);
      }
    }
    append(ahead_);
    return std::move(result_);
  }

 private:
  void append(const Actions& actions) { result_.insert(result_.end(), actions.begin(), actions.end()); }

  void add(const Action& action) {
    if (words_of(action.kind).receives) return ahead_.push_back(action);
    if (words_of(action.kind).sends) return stretches_.back().behind.push_back(action);
    if (!goes_on(action)) stretches_.push_back({.ahead = std::exchange(ahead_, {})});
    stretches_.back().passes.push_back(action);
  }

  bool goes_on(const Action& action) const {
    if (stretches_.empty() || !ahead_.empty() || !stretches_.back().behind.empty()) return false;
    const Action& before = stretches_.back().passes.back();
    return before.microbatch == action.microbatch && pass_of(before) == pass_of(action) && stage_of(before) == stage_of(action);
  }
  int stage_of(const Action& action) const { return layout_.pipeline.stages() == 1 ? 0 : layout_.pipeline.stage_of(action.layer); }

  bool belong_together(const Stretch& first, const Stretch& second) const {
    if (first.microbatch() == second.microbatch() || !divides(first) || !divides(second)) return false;
    const bool backward_first = pairs_ == config::Pairs::kBackwardFirst;
    const Stretch &forward = backward_first ? second : first, &backward = backward_first ? first : second;
    if (forward.pass() != PassKind::kForward || backward.pass() != PassKind::kBackward) return false;
    // While dualpipe-v fills and drains, I waits for what is on its way down.
    const bool whole = adds_to_weights(backward.passes.back().kind);
    return whole || layout_.pipeline.kind != ScheduleKind::kDualPipeV;
  }
  bool divides(const Stretch& stretch) const {
    for (const Action& action : stretch.passes)
      if (layout_.divisible(action.layer)) return true;
    return false;
  }

  void in_turns(const Stretch& first, const Stretch& second) {
    append(first.ahead);
    append(second.ahead);
    const std::vector<Actions> one = in_parts(first), other = in_parts(second);
    for (size_t i = 0; i < std::max(one.size(), other.size()); ++i) {
      if (i < one.size()) append(one[i]);
      if (i < other.size()) append(other[i]);
    }
  }

  // What is computed up to each call that sets rows on their way, with the call.
  std::vector<Actions> in_parts(const Stretch& stretch) const {
    std::vector<Actions> turns(1);
    for (const Action& action : stretch.passes) {
      const bool forward = pass_of(action) == PassKind::kForward;
      if (!layout_.divisible(action.layer) || work_of(action.kind) == Work::kAgain) {
        turns.back().push_back(action);
        continue;
      }
      for (int part = 0; part < kParts; ++part) {
        Action of_part = action;
        of_part.part = part;
        turns.back().push_back(of_part);
        if (part + 1 == kParts) break;
        const ActionKind there = forward ? ActionKind::kDispatchForward : ActionKind::kCombineBackward;
        const ActionKind back = forward ? ActionKind::kCombineForward : ActionKind::kDispatchBackward;
        turns.back().push_back({.kind = part == 0 ? there : back, .layer = action.layer, .microbatch = action.microbatch});
        turns.emplace_back();
      }
    }
    turns.back().insert(turns.back().end(), stretch.behind.begin(), stretch.behind.end());
    return turns;
  }

  const Layout& layout_;
  const config::Pairs pairs_;
  Actions ahead_;  // RECVs in front of the next stretch
  std::vector<Stretch> stretches_;
  Actions result_;
};

}  // namespace

Program divide_layers(Program program, const Layout& layout) {
  if (!layout.overlap_experts || pairs_of(layout) == config::Pairs::kNone) return program;
  for (Actions& actions : program.lists) actions = Division(layout, actions).take();
  return program;
}

}  // namespace lockstep::program
