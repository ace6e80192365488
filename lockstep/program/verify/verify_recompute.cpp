#include "lockstep/program/verify/rules.h"

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/program/names.h"

namespace lockstep::program {
namespace {

class RecomputeCheck {
 public:
  RecomputeCheck(const Program& program, const Layout& layout, int rank)
      : layout_(layout),
        rank_(rank),
        actions_(program.list(rank)),
        layers_(layout.layers_of(rank)),
        num_layers_(layout.num_layers()),
        microbatches_(static_cast<int>(layout.num_microbatches())),
        ran_(static_cast<size_t>(num_layers_) * static_cast<size_t>(microbatches_)),
        times_(ran_.size()) {}

  std::vector<std::string> run() {
    const Action* before = nullptr;  // the last action that computed
    for (const Action& action : actions_) {
      if (!computes(action.kind)) continue;
      if (before && before->kind == ActionKind::kRecompute && !starts_backward(action, *before))
        problem(name(*before), "is not directly before its backward");
      if (action.kind == ActionKind::kForward) ran_[cell(action.layer, action.microbatch)] = true;
      if (action.kind == ActionKind::kRecompute) again(action);
      before = &action;
    }
    for (const int layer : layers_)
      for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
        const int times = times_[cell(layer, microbatch)], wanted = layout_.recompute_of(layer) == arch::Recompute::kNone ? 0 : 1;
        if (times != wanted)
          problem(cat(layer_label(layer, num_layers_), " m", microbatch), cat(times, " RECOMPUTE; should be ", wanted));
      }
    return std::move(problems_);
  }

 private:
  static bool starts_backward(const Action& action, const Action& recompute) {
    return goes_back(action.kind) && action.layer == recompute.layer && action.microbatch == recompute.microbatch;
  }
  std::string name(const Action& action) const { return action_text(action, {}, num_layers_); }
  void problem(const std::string& of, const std::string& what) {
    problems_.push_back(cat("[recompute] rank ", rank_, ": ", of, " ", what));
  }

  size_t cell(int layer, int microbatch) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(microbatches_) + static_cast<size_t>(microbatch);
  }
  void again(const Action& action) {
    const size_t at = cell(action.layer, action.microbatch);
    times_[at] += 1;
    if (!ran_[at]) problem(name(action), "before its F");
  }

  const Layout& layout_;
  const int rank_;
  const std::vector<Action>& actions_;
  const std::vector<int> layers_;
  const int num_layers_, microbatches_;
  std::vector<bool> ran_;  // F, by layer and microbatch
  std::vector<int> times_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> check_recomputed(const Program& program, const Layout& layout, int rank) {
  return RecomputeCheck(program, layout, rank).run();
}

}  // namespace lockstep::program
