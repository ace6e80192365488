#include "lockstep/program/passes.h"

namespace lockstep::program {

Program update(Program program, const Layout& layout) {
  const bool server_mode =
      layout.data_parallel == config::DataParallel::kParameterServer && layout.mesh.degree(mesh::kDataAxes) > 1;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
    std::vector<Action>& actions = program.ranks[static_cast<size_t>(rank)];
    actions.push_back({.kind = ActionKind::kLoss});
    actions.push_back({.kind = ActionKind::kNorm});
    if (!server_mode || layout.mesh.group_rank(rank, mesh::kDataAxes) == kServerRank) {
      actions.push_back({.kind = ActionKind::kStep});
    }
    for (size_t i = 0; server_mode && i < program.buckets.size(); ++i) {
      actions.push_back({.kind = ActionKind::kPull, .bucket = static_cast<int>(i)});
    }
  }
  return program;
}

}  // namespace lockstep::program
