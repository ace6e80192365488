// Which ranks are alike: what is proved or predicted of one holds for all of its class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// Ranks of one class run one list on the same piece of the model, and all or none of them hold optimizer state. They differ in
// their samples; in their peers, which are arithmetic from coordinates; and in which elements of a unit lie in their shard, of
// which nothing depends but how many of them REDUCE_PARTIAL sums and what goes to the owners of matrices.
//
// Classes are numbered: of a row (one list, one coordinate on pp, with or without optimizer state) those of every place in
// piece_period() in turn, rows by their first ranks. Made of stretches of ranks; nothing is kept for a rank.
class RankClasses {
 public:
  RankClasses(const Program& program, const Layout& layout);
  size_t count() const { return first_ranks_.size() * static_cast<size_t>(period_); }
  size_t row_of(int rank) const;
  size_t of(int rank) const { return row_of(rank) * static_cast<size_t>(period_) + static_cast<size_t>(rank % period_); }
  const std::vector<int>& first_ranks() const { return first_ranks_; }  // of every row; ascending

  struct Alike {
    int first = 0;
    int64_t ranks = 0;
  };
  // Of the ranks [begin, end): of every class the first and how many they are, by their first ranks.
  std::vector<Alike> among(int begin, int end) const;

 private:
  struct Stretch {
    int end = 0;  // begins where the one before it ends
    size_t row = 0;
  };
  int period_;  // of the pieces: piece_period()
  std::vector<int> first_ranks_;
  std::vector<Stretch> stretches_;
};

// Ranks this far apart have pieces of one size: tp, which varies fastest, and where experts are cut unevenly also etp, which does so
// among theirs.
int piece_period(const Layout& layout);

// Whether an action sends more or less by what lies in the rank's shard, or by which matrices it owns.
bool differs_by_shard(const Layout& layout, const Action& action);

// For every different row of lists that the ranks of a pipeline run: the ranks of the first pipeline that runs it, by their
// coordinate on pp.
std::vector<std::vector<int>> distinct_pipelines(const Program& program, const Layout& layout);

}  // namespace lockstep::program
