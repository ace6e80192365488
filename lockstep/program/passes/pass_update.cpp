#include <algorithm>

#include "lockstep/program/passes/passes.h"

namespace lockstep::program {
namespace {

// Zero 1 and 2: every rank needs all parameters again, and the first layers first.
void step(const Layout& layout, int rank, std::vector<Action>& actions) {
  if (layout.shards() == 1 || layout.sharded_parameters()) return actions.push_back({.kind = ActionKind::kStep});
  for (const arch::FlatUnit& unit : layout.flat_layout(rank).units) {
    actions.push_back({.kind = ActionKind::kStep, .unit = unit.layer});
    actions.push_back({.kind = ActionKind::kUnshard, .unit = unit.layer});
  }
}

}  // namespace

bool has_partial(const std::vector<arch::ParamSpec>& table) {
  return std::any_of(table.begin(), table.end(), [](const arch::ParamSpec& spec) { return spec.partial; });
}

Program update(Program program, const Layout& layout) {
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
    std::vector<Action>& actions = program.ranks[static_cast<size_t>(rank)];
    actions.push_back({.kind = ActionKind::kLoss});
    const bool owner = layout.owns_optimizer(rank);
    if (owner && layout.tied_peer(rank) >= 0) actions.push_back({.kind = ActionKind::kReduceTied, .unit = 0});
    if (owner && has_partial(layout.param_table(rank))) actions.push_back({.kind = ActionKind::kReducePartial});
    actions.push_back({.kind = ActionKind::kNorm});
    if (owner) step(layout, rank, actions);
    for (size_t i = 0; layout.server_mode() && i < program.buckets.size(); ++i) {
      if (program.buckets[i].pipeline != layout.pipeline_rank(rank)) continue;
      actions.push_back({.kind = ActionKind::kPull, .bucket = static_cast<int>(i)});
    }
  }
  return program;
}

}  // namespace lockstep::program
