#include "lockstep/program/rank_class.h"

#include <set>

#include "lockstep/program/effects.h"

namespace lockstep::program {

RankClass class_of(const Program& program, const Layout& layout, int rank) {
  const mesh::PerAxis at = layout.mesh.coordinates(rank);
  return {.list = static_cast<int>(program.list_index(rank)),
          .pp = at[mesh::Axis::kPp],
          .tp = at[mesh::Axis::kTp],
          .owner = layout.owns_optimizer(rank)};
}

bool differs_by_shard(const Layout& layout, const Action& action) {
  return moves_matrices(action.kind) || (layout.shards() > 1 && sums_partial(action.kind));
}

std::vector<std::vector<int>> distinct_pipelines(const Program& program, const Layout& layout) {
  const int copies = program.world_size() / layout.pipeline.ranks;  // pp varies slowest
  std::vector<std::vector<int>> pipelines;
  std::set<std::vector<int32_t>> known;
  std::vector<int32_t> before;
  for (int copy = 0; copy < copies; ++copy) {
    std::vector<int> ranks;
    std::vector<int32_t> lists;
    for (int rank = copy; rank < program.world_size(); rank += copies) {
      ranks.push_back(rank);
      lists.push_back(program.list_of[static_cast<size_t>(rank)]);
    }
    if (lists == before) continue;
    if (known.insert(lists).second) pipelines.push_back(std::move(ranks));
    before = std::move(lists);
  }
  return pipelines;
}

}  // namespace lockstep::program
