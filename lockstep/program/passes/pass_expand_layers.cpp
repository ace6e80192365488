#include "lockstep/program/passes/passes.h"

namespace lockstep::program {

Program expand_layers(Program program, const Layout& layout) {
  for (std::vector<Action>& actions : program.lists) {
    std::vector<Action> expanded;
    for (Action action : actions) {
      const auto [begin, end] = layout.stage_layers(action.stage);
      const bool forward = action.kind == ActionKind::kForward;
      action.stage = -1;
      for (int i = 0; i < end - begin; ++i) {
        action.layer = forward ? begin + i : end - 1 - i;
        if (goes_back(action.kind) && layout.recompute_of(action.layer) != arch::Recompute::kNone) {
          Action recompute = action;
          recompute.kind = ActionKind::kRecompute;
          expanded.push_back(recompute);
        }
        expanded.push_back(action);
      }
    }
    actions = std::move(expanded);
  }
  return program;
}

}  // namespace lockstep::program
