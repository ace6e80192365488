#include "lockstep/base/check.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/passes/schedules.h"

namespace lockstep::program {

ScheduleInput schedule_of(const Layout& layout) {
  return {.kind = layout.pipeline.kind,
          .ranks = layout.pipeline.ranks,
          .virtual_stages = layout.pipeline.virtual_stages,
          .microbatches = static_cast<int>(layout.num_microbatches()),
          .grid = layout.pipeline.grid};
}

Program schedule(const Layout& layout) { return by_pipeline_rank(layout, make_schedule(schedule_of(layout))); }

Program by_pipeline_rank(const Layout& layout, std::vector<std::vector<Action>> lists) {
  LOCKSTEP_CHECK_EQ(static_cast<int>(lists.size()), layout.pipeline.ranks, "lists, and ranks of the pipeline");
  Program program{.lists = std::move(lists)};
  program.list_of.reserve(static_cast<size_t>(layout.mesh.world_size()));
  for (int pp = 0; pp < layout.pipeline.ranks; ++pp)
    program.list_of.insert(program.list_of.end(), static_cast<size_t>(layout.pipelines()), pp);
  return program;
}

std::vector<Action> merged(const std::vector<Action>& actions, const Insertions& before) {
  std::vector<Action> result;
  auto next = before.begin();
  for (size_t i = 0; i <= actions.size(); ++i) {
    if (next != before.end() && next->first == i) {
      result.insert(result.end(), next->second.begin(), next->second.end());
      ++next;
    }
    if (i < actions.size()) result.push_back(actions[i]);
  }
  return result;
}

}  // namespace lockstep::program
