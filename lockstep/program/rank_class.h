// Which ranks are alike: what is proved or predicted of one holds for all of its class.
#pragma once

#include <compare>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// Ranks of one class run one list on the same piece of the model, and all or none of them hold optimizer state. They differ in
// their samples; in their peers, which are arithmetic from coordinates; and in which elements of a unit lie in their shard, of
// which nothing depends but how many of them REDUCE_PARTIAL sums and what goes to the owners of matrices. A function of coordinates: nothing is made for a rank.
struct RankClass {
  int list = 0;  // of Program::lists
  int pp = 0;
  int tp = 0;
  bool owner = true;  // Layout::owns_optimizer
  auto operator<=>(const RankClass&) const = default;
};
RankClass class_of(const Program& program, const Layout& layout, int rank);
// Whether an action sends more or less by what lies in the rank's shard, or by which matrices it owns.
bool differs_by_shard(const Layout& layout, const Action& action);

// For every different row of lists that the ranks of a pipeline run: the ranks of the first pipeline that runs it, by their
// coordinate on pp.
std::vector<std::vector<int>> distinct_pipelines(const Program& program, const Layout& layout);

}  // namespace lockstep::program
