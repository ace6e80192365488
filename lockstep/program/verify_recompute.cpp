#include "lockstep/program/verify_recompute.h"

#include <map>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/program/render.h"

namespace lockstep::program {
namespace {

using Key = std::pair<int, int>;  // layer, microbatch

class RecomputeCheck {
 public:
  RecomputeCheck(const Program& program, const Layout& layout, int rank)
      : layout_(layout),
        rank_(rank),
        actions_(program.ranks[static_cast<size_t>(rank)]),
        layers_(layout.layers_of(rank)),
        num_layers_(static_cast<int>(arch::layer_table(layout.model).size())) {}

  std::vector<std::string> run() {
    const Action* before = nullptr;  // the last action that computed
    for (const Action& action : actions_) {
      if (action.kind > ActionKind::kRecompute) continue;
      if (before && before->kind == ActionKind::kRecompute && !starts_backward(action, *before))
        problem(name(*before), "is not directly before its backward");
      if (action.kind == ActionKind::kForward) ran_[{action.layer, action.microbatch}] = true;
      if (action.kind == ActionKind::kRecompute) again(action);
      before = &action;
    }
    for (const int layer : layers_)
      for (int microbatch = 0; microbatch < layout_.num_microbatches(); ++microbatch) {
        const int times = times_[{layer, microbatch}], wanted = layout_.recompute_of(layer) == arch::Recompute::kNone ? 0 : 1;
        if (times != wanted)
          problem(cat(layer_label(layer, num_layers_), " m", microbatch), cat(times, " RECOMPUTE; should be ", wanted));
      }
    return std::move(problems_);
  }

 private:
  static bool starts_backward(const Action& action, const Action& recompute) {
    return (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput) &&
           action.layer == recompute.layer && action.microbatch == recompute.microbatch;
  }
  std::string name(const Action& action) const { return action_text(action, {}, num_layers_); }
  void problem(const std::string& of, const std::string& what) {
    problems_.push_back(cat("[recompute] rank ", rank_, ": ", of, " ", what));
  }

  void again(const Action& action) {
    const Key key{action.layer, action.microbatch};
    times_[key] += 1;
    if (!ran_[key]) problem(name(action), "before its F");
  }

  const Layout& layout_;
  const int rank_;
  const std::vector<Action>& actions_;
  const std::vector<int> layers_;
  const int num_layers_;
  std::map<Key, bool> ran_;
  std::map<Key, int> times_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> check_recomputed(const Program& program, const Layout& layout, int rank) {
  return RecomputeCheck(program, layout, rank).run();
}

}  // namespace lockstep::program
