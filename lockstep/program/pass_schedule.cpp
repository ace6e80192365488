#include "lockstep/base/check.h"
#include "lockstep/program/passes.h"

namespace lockstep::program {

Program schedule(const Layout& layout) {
  LOCKSTEP_CHECK_EQ(layout.mesh.degree(mesh::Axis::kPp), 1, "this schedule has one stage");
  std::vector<Action> actions;
  for (int microbatch = 0; microbatch < layout.num_microbatches(); ++microbatch) {
    actions.push_back({.kind = ActionKind::kForward, .stage = 0, .microbatch = microbatch});
    actions.push_back({.kind = ActionKind::kBackward, .stage = 0, .microbatch = microbatch});
  }
  Program program;
  program.ranks.assign(static_cast<size_t>(layout.mesh.world_size()), actions);
  return program;
}

}  // namespace lockstep::program
