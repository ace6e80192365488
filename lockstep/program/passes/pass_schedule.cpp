#include "lockstep/program/passes/passes.h"
#include "lockstep/program/passes/schedules.h"

namespace lockstep::program {

Program schedule(const Layout& layout) {
  const std::vector<std::vector<Action>> lists =
      make_schedule({.kind = layout.pipeline.kind,
                     .ranks = layout.pipeline.ranks,
                     .virtual_stages = layout.pipeline.virtual_stages,
                     .microbatches = static_cast<int>(layout.num_microbatches()),
                     .grid = layout.pipeline.grid});
  Program program;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank)
    program.ranks.push_back(lists[static_cast<size_t>(layout.pipeline_rank(rank))]);
  return program;
}

}  // namespace lockstep::program
