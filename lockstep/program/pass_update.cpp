#include <algorithm>

#include "lockstep/program/passes.h"

namespace lockstep::program {

bool has_partial(const std::vector<arch::ParamSpec>& table) {
  return std::any_of(table.begin(), table.end(), [](const arch::ParamSpec& spec) { return spec.partial; });
}

Program update(Program program, const Layout& layout) {
  const bool partial = has_partial(layout.param_table(0));  // pieces differ between ranks, kinds of gradients do not
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
    std::vector<Action>& actions = program.ranks[static_cast<size_t>(rank)];
    actions.push_back({.kind = ActionKind::kLoss});
    const bool owner = layout.owns_optimizer(rank);
    if (owner && partial) actions.push_back({.kind = ActionKind::kReducePartial});
    actions.push_back({.kind = ActionKind::kNorm});
    if (owner) actions.push_back({.kind = ActionKind::kStep});
    for (size_t i = 0; layout.server_mode() && i < program.buckets.size(); ++i) {
      actions.push_back({.kind = ActionKind::kPull, .bucket = static_cast<int>(i)});
    }
  }
  return program;
}

}  // namespace lockstep::program
