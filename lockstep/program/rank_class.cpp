#include "lockstep/program/rank_class.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "lockstep/program/effects.h"

namespace lockstep::program {

int piece_period(const Layout& layout) {
  const int tp = layout.mesh.degree(mesh::Axis::kTp);
  return layout.model.has_experts() && layout.model.experts.ffn % layout.etp != 0 ? std::lcm(tp, layout.etp) : tp;
}

RankClasses::RankClasses(const Program& program, const Layout& layout) : period_(piece_period(layout)) {
  static_assert(kServerRank == 0);  // servers stand first among the ranks of their coordinate on pp
  const std::vector<int32_t>& lists = program.list_of;
  const int of_stage = layout.pipelines();
  std::map<std::tuple<int32_t, int, bool>, size_t> rows;
  for (int begin = 0; begin < program.world_size();) {
    const int pp = begin / of_stage, servers = layout.server_mode() ? pp * of_stage + layout.mesh.degree(mesh::Axis::kTp) : 0;
    const int last = begin < servers ? servers : (pp + 1) * of_stage;
    const int32_t list = lists[static_cast<size_t>(begin)];
    const auto other = std::find_if(lists.begin() + begin, lists.begin() + last, [&](int32_t runs) { return runs != list; });
    const auto [row, fresh] = rows.try_emplace({list, pp, layout.owns_optimizer(begin)}, first_ranks_.size());
    if (fresh) first_ranks_.push_back(begin);
    begin = static_cast<int>(other - lists.begin());
    stretches_.push_back({.end = begin, .row = row->second});
  }
}

size_t RankClasses::row_of(int rank) const { return std::ranges::upper_bound(stretches_, rank, {}, &Stretch::end)->row; }

std::vector<RankClasses::Alike> RankClasses::among(int begin, int end) const {
  std::vector<Alike> found;
  std::map<size_t, size_t> known;
  int from = 0;
  for (const Stretch& stretch : stretches_) {
    const int first = std::max(begin, from), last = std::min(end, stretch.end);
    from = stretch.end;
    for (int rank = first; rank < std::min(last, first + period_); ++rank) {
      const auto [place, fresh] = known.try_emplace(of(rank), found.size());
      if (fresh) found.push_back({.first = rank});
      found[place->second].ranks += (last - 1 - rank) / period_ + 1;
    }
  }
  return found;
}

bool differs_by_shard(const Layout& layout, const Action& action) {
  return moves_matrices(action.kind) || (layout.shards() > 1 && sums_partial(action.kind));
}

std::vector<std::vector<int>> distinct_pipelines(const Program& program, const Layout& layout) {
  const std::vector<int32_t>& list_of = program.list_of;
  const int copies = layout.pipelines();
  std::set<int> changes = {0};  // copies of which a rank runs another list than that of the copy before
  for (int rank = 1; rank < program.world_size(); ++rank)
    if (list_of[static_cast<size_t>(rank)] != list_of[static_cast<size_t>(rank) - 1]) changes.insert(rank % copies);
  std::vector<std::vector<int>> pipelines;
  std::set<std::vector<int32_t>> known;
  for (const int copy : changes) {
    std::vector<int> ranks;
    std::vector<int32_t> lists;
    for (int rank = copy; rank < program.world_size(); rank += copies) {
      ranks.push_back(rank);
      lists.push_back(list_of[static_cast<size_t>(rank)]);
    }
    if (known.insert(lists).second) pipelines.push_back(std::move(ranks));
  }
  return pipelines;
}

}  // namespace lockstep::program
