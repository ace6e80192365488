#include "lockstep/base/check.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/passes/schedules.h"

namespace lockstep::program {

Program schedule(const Layout& layout) {
  return by_pipeline_rank(layout, make_schedule({.kind = layout.pipeline.kind,
                                                 .ranks = layout.pipeline.ranks,
                                                 .virtual_stages = layout.pipeline.virtual_stages,
                                                 .microbatches = static_cast<int>(layout.num_microbatches()),
                                                 .grid = layout.pipeline.grid}));
}

Program by_pipeline_rank(const Layout& layout, std::vector<std::vector<Action>> lists) {
  LOCKSTEP_CHECK_EQ(static_cast<int>(lists.size()), layout.pipeline.ranks, "lists, and ranks of the pipeline");
  Program program{.lists = std::move(lists)};
  program.list_of.reserve(static_cast<size_t>(layout.mesh.world_size()));
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) program.list_of.push_back(layout.pipeline_rank(rank));
  return program;
}

}  // namespace lockstep::program
