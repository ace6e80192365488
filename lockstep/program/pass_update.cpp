#include <algorithm>

#include "lockstep/program/passes.h"

namespace lockstep::program {
namespace {

// Zero 1 and 2: every rank needs all parameters again, and the first layers first.
void step(const Layout& layout, std::vector<Action>& actions) {
  if (layout.shards() == 1 || layout.sharded_parameters()) return actions.push_back({.kind = ActionKind::kStep});
  for (const arch::FlatUnit& unit : layout.flat_layout(0).units) {
    actions.push_back({.kind = ActionKind::kStep, .unit = unit.layer});
    actions.push_back({.kind = ActionKind::kUnshard, .unit = unit.layer});
  }
}

}  // namespace

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
    if (owner) step(layout, actions);
    for (size_t i = 0; layout.server_mode() && i < program.buckets.size(); ++i) {
      actions.push_back({.kind = ActionKind::kPull, .bucket = static_cast<int>(i)});
    }
  }
  return program;
}

}  // namespace lockstep::program
