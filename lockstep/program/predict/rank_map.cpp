#include "lockstep/program/predict/rank_map.h"

#include <algorithm>
#include <set>

#include "lockstep/base/check.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::program {
namespace {

using mesh::Axis;

// Where a rank stands in the line of all ranks, tp first and the data axes last.
int place_of(const Layout& layout, int rank) {
  const mesh::PerAxis at = layout.mesh.coordinates(rank);
  int place = 0;
  for (const Axis axis : {Axis::kDpReplicate, Axis::kDpShard, Axis::kPp, Axis::kCp, Axis::kTp})
    place = place * layout.mesh.degree(axis) + at[axis];
  return place;
}

RankMap filled(const std::vector<int>& places, int per_node, int ranks_per_node) {
  RankMap map{.node = {}, .empty_places = ranks_per_node - per_node};
  for (const int place : places) map.node.push_back(place / per_node);
  return map;
}

// The ledger names the data axis "dp" where only one of the two has several ranks.
std::string axis_of(const Layout& layout, const std::string& name) {
  if (name != "dp") return name;
  return std::string(mesh::axis_name(layout.mesh.degree(Axis::kDpShard) > 1 ? Axis::kDpShard : Axis::kDpReplicate));
}

}  // namespace

std::vector<AxisGroups> axis_groups(const Layout& layout) {
  std::vector<AxisGroups> found;
  for (auto axis = mesh::kAxes.rbegin(); axis != mesh::kAxes.rend(); ++axis) {
    if (layout.mesh.degree(*axis) == 1) continue;
    AxisGroups& groups = found.emplace_back(AxisGroups{std::string(mesh::axis_name(*axis)), {}});
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank)
      if (layout.mesh.coordinates(rank)[*axis] == 0) groups.groups.push_back(layout.mesh.group(rank, *axis));
  }
  AxisGroups tied{"tied", {}};
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank)
    if (const int peer = layout.tied_peer(rank); peer > rank) tied.groups.push_back({rank, peer});
  if (!tied.groups.empty()) found.push_back(std::move(tied));
  return found;
}

int RankMap::nodes() const { return *std::max_element(node.begin(), node.end()) + 1; }

std::vector<int> RankMap::ranks_on(int wanted) const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < node.size(); ++rank)
    if (node[rank] == wanted) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

RankMap placed_by_axis(const Layout& layout, int ranks_per_node) {
  LOCKSTEP_CHECK(ranks_per_node >= 1, "servers of ", ranks_per_node, " ranks");
  const int tp = layout.mesh.degree(Axis::kTp);
  std::vector<int> places;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) places.push_back(place_of(layout, rank));
  return filled(places, tp <= ranks_per_node ? ranks_per_node / tp * tp : ranks_per_node, ranks_per_node);
}

RankMap placed_in_order(const Layout& layout, int ranks_per_node) {
  LOCKSTEP_CHECK(ranks_per_node >= 1, "servers of ", ranks_per_node, " ranks");
  std::vector<int> places;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) places.push_back(rank);
  return filled(places, ranks_per_node, ranks_per_node);
}

std::vector<std::vector<int>> nodes_of_copies(const Layout& layout, const RankMap& map) {
  std::vector<std::set<int>> nodes(static_cast<size_t>(layout.mesh.degree(layout.samples())));
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank)
    nodes[static_cast<size_t>(layout.mesh.group_rank(rank, layout.samples()))].insert(map.node[static_cast<size_t>(rank)]);
  std::vector<std::vector<int>> copies;
  for (const std::set<int>& copy : nodes) copies.emplace_back(copy.begin(), copy.end());
  return copies;
}

std::vector<AxisTraffic> axis_traffic(const Layout& layout, const Program& program, const std::vector<RankMap>& maps) {
  std::vector<AxisTraffic> axes;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
    const Ledger ledger = predict_ledger(layout, program, rank);
    for (const auto& [key, entry] : ledger.entries()) {
      const std::string name = axis_of(layout, key.axis);
      auto axis = std::find_if(axes.begin(), axes.end(), [&](const AxisTraffic& known) { return known.axis == name; });
      if (axis == axes.end())
        axis = axes.insert(axes.end(), {.axis = name, .sent = 0, .between_nodes = std::vector<int64_t>(maps.size(), 0)});
      for (const auto& [peer, bytes] : entry.sent) {
        axis->sent += bytes;
        for (size_t i = 0; i < maps.size(); ++i)
          if (maps[i].node[static_cast<size_t>(rank)] != maps[i].node[static_cast<size_t>(peer)]) axis->between_nodes[i] += bytes;
      }
    }
  }
  std::stable_sort(axes.begin(), axes.end(), [](const AxisTraffic& a, const AxisTraffic& b) { return a.sent > b.sent; });
  return axes;
}

}  // namespace lockstep::program
