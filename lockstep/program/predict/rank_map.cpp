#include "lockstep/program/predict/rank_map.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/rank_class.h"

namespace lockstep::program {

using mesh::Axis;

std::vector<AxisGroups> axis_groups(const Layout& layout, int64_t most) {
  const int world_size = layout.mesh.world_size();
  std::vector<AxisGroups> found;
  const auto add = [&](Axis axis, const mesh::View& view) {
    const int degree = layout.mesh.degree(view);
    if (degree == 1) return;
    AxisGroups& of_axis = found.emplace_back(AxisGroups{.axis = std::string(mesh::axis_name(axis)), .count = world_size / degree});
    for (int rank = 0; rank < world_size && std::ssize(of_axis.groups) < most; ++rank)
      if (layout.mesh.group_rank(rank, view) == 0) of_axis.groups.push_back(layout.mesh.group(rank, view));
  };
  for (auto axis = mesh::kAxes.rbegin(); axis != mesh::kAxes.rend(); ++axis) add(*axis, *axis);
  if (layout.model.has_experts())
    for (const Axis axis : {Axis::kEtp, Axis::kEp}) add(axis, {layout.expert_ranks().fold, axis});
  AxisGroups tied{.axis = "tied"};
  const int copies = layout.pipelines();
  for (const int first : stage_ranks(layout)) {
    if (layout.tied_peer(first) <= first) continue;
    tied.count += copies;
    for (int rank = first; rank < first + copies && std::ssize(tied.groups) < most; ++rank)
      tied.groups.push_back({rank, layout.tied_peer(rank)});
  }
  if (tied.count > 0) found.push_back(std::move(tied));
  return found;
}

int RankMap::node_of(int rank) const {
  const mesh::PerAxis at = mesh_.coordinates(rank);
  int place = 0, stride = 1;
  for (const Axis axis : order_) {
    place += at[axis] * stride;
    stride *= mesh_.degree(axis);
  }
  return place / used_;
}

std::vector<int> RankMap::ranks_on(int node) const {
  std::vector<int> ranks;
  for (int place = node * used_; place < std::min((node + 1) * used_, mesh_.world_size()); ++place) {
    mesh::PerAxis at;
    int left = place;
    for (const Axis axis : order_) {
      at[axis] = left % mesh_.degree(axis);
      left /= mesh_.degree(axis);
    }
    ranks.push_back(mesh_.rank(at));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

RankMap placed_by_axis(const Layout& layout, int ranks_per_node) {
  LOCKSTEP_CHECK(ranks_per_node >= 1, "servers of ", ranks_per_node, " ranks");
  const int tp = layout.mesh.degree(Axis::kTp);
  return {layout.mesh, {Axis::kTp, Axis::kCp, Axis::kPp, Axis::kDpShard, Axis::kDpReplicate},
          tp <= ranks_per_node ? ranks_per_node / tp * tp : ranks_per_node, ranks_per_node};
}

RankMap placed_in_order(const Layout& layout, int ranks_per_node) {
  LOCKSTEP_CHECK(ranks_per_node >= 1, "servers of ", ranks_per_node, " ranks");
  std::array<Axis, mesh::kAxes.size()> order = mesh::kAxes;
  std::reverse(order.begin(), order.end());
  return {layout.mesh, order, ranks_per_node, ranks_per_node};
}

// A copy's ranks stand in line one behind the other.
std::vector<std::vector<int>> nodes_of_copies(const Layout& layout, const RankMap& map) {
  const int64_t copies = layout.mesh.degree(layout.samples()), ranks = layout.mesh.world_size() / copies;
  std::vector<std::vector<int>> nodes(static_cast<size_t>(copies));
  for (int64_t copy = 0; copy < copies; ++copy)
    for (int64_t node = copy * ranks / map.places_used(); node <= ((copy + 1) * ranks - 1) / map.places_used(); ++node)
      nodes[static_cast<size_t>(copy)].push_back(static_cast<int>(node));
  return nodes;
}

std::vector<AxisTraffic> axis_traffic(const Layout& layout, const Program& program, const std::vector<RankMap>& maps) {
  std::vector<AxisTraffic> axes;
  // The ledger names the data axis "dp" where only one of the two has several ranks.
  const std::string data(mesh::axis_name(layout.mesh.degree(Axis::kDpShard) > 1 ? Axis::kDpShard : Axis::kDpReplicate));
  const auto sum_of = [&](const std::string& ledger_name) -> AxisTraffic& {
    const std::string& name = ledger_name == "dp" ? data : ledger_name;
    const auto known = std::ranges::find(axes, name, &AxisTraffic::axis);
    if (known != axes.end()) return *known;
    return axes.emplace_back(AxisTraffic{.axis = name, .between_nodes = std::vector<int64_t>(maps.size())});
  };
  // To peers that stand `moved` further than those of `sent`.
  const auto add = [&](AxisTraffic& sum, int rank, const std::map<int, int64_t>& sent, int moved, int64_t times) {
    for (const auto& [peer, bytes] : sent) {
      sum.sent += times * bytes;
      for (size_t i = 0; i < maps.size(); ++i)
        if (maps[i].node_of(rank) != maps[i].node_of(peer + moved)) sum.between_nodes[i] += times * bytes;
    }
  };
  // The calls of a class are planned for its first rank; the group of another rank is the same, moved.
  const RankClasses classes(program, layout);
  std::map<size_t, std::vector<RepeatedCalls>> of_class;
  std::map<std::pair<const CallOfRank*, int>, std::map<int, int64_t>> known_sends;  // by place in the group
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
    const auto [known, fresh] = of_class.try_emplace(classes.of(rank));
    if (fresh) {
      known->second = repeated_calls(layout, program, rank);
      // Axes that send as much stand in the order of the printed ledger.
      for (const auto& [text, key, entry] : predict_ledger(layout, program, rank).printed()) sum_of(key.axis);
    }
    for (const auto& [action, times, calls] : known->second) {
      if (differs_by_shard(layout, action)) {
        for (const CallOfRank& own : calls_of_rank(layout, program, rank, action))
          add(sum_of(own.key.axis), rank, predicted_sends(own.call, own.group_rank), 0, times);
        continue;
      }
      for (const CallOfRank& planned : calls) {
        const int place = group_rank(layout, rank, planned.group);
        const auto [sent, is_new] = known_sends.try_emplace({&planned, place});
        if (is_new) sent->second = predicted_sends(planned.call, place);
        add(sum_of(planned.key.axis), rank, sent->second, rank - planned.call.group[static_cast<size_t>(place)], times);
      }
    }
  }
  std::ranges::stable_sort(axes, std::ranges::greater(), &AxisTraffic::sent);
  return axes;
}

}  // namespace lockstep::program
