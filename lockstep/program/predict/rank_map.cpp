#include "lockstep/program/predict/rank_map.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/rank_class.h"

namespace lockstep::program {
namespace {

using mesh::Axis;

// The ledger names the data axis "dp" where only one of the two has several ranks.
std::string axis_of(const Layout& layout, const std::string& name) {
  if (name != "dp") return name;
  return std::string(mesh::axis_name(layout.mesh.degree(Axis::kDpShard) > 1 ? Axis::kDpShard : Axis::kDpReplicate));
}

}  // namespace

std::vector<AxisGroups> axis_groups(const Layout& layout, int64_t most) {
  const int world_size = layout.mesh.world_size();
  std::vector<AxisGroups> found;
  for (auto axis = mesh::kAxes.rbegin(); axis != mesh::kAxes.rend(); ++axis) {
    const int degree = layout.mesh.degree(*axis);
    if (degree == 1) continue;
    AxisGroups& of_axis = found.emplace_back(AxisGroups{.axis = std::string(mesh::axis_name(*axis)), .count = world_size / degree});
    for (int rank = 0; rank < world_size && std::ssize(of_axis.groups) < most; ++rank)
      if (layout.mesh.coordinates(rank)[*axis] == 0) of_axis.groups.push_back(layout.mesh.group(rank, *axis));
  }
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

namespace {

// Adds up what ranks send, one after the other. The calls of a class are planned for its first rank; the group of another rank is
// the same, moved.
class TrafficSum {
 public:
  TrafficSum(const Layout& layout, const Program& program, const std::vector<RankMap>& maps)
      : layout_(layout), program_(program), maps_(maps), classes_(program, layout) {}

  void add(int rank) {
    const auto [known, fresh] = calls_.try_emplace(classes_.of(rank));
    if (fresh) known->second = plan(rank);
    for (Call& call : known->second.same) {
      const int place = group_rank(layout_, rank, call.planned.group);
      const int moved = rank - call.planned.call.group[static_cast<size_t>(place)];
      const auto [sent, is_new] = call.sent.try_emplace(place);
      if (is_new) sent->second = predicted_sends(call.planned.call, place);
      for (const auto& [peer, bytes] : sent->second) count(rank, peer + moved, call.times * bytes, axes_[call.axis]);
    }
    for (const Action& action : known->second.by_shard)
      for (const CallOfRank& planned : calls_of_rank(layout_, program_, rank, action)) {
        AxisTraffic& sum = axes_[axis_index(planned.key.axis)];
        for (const auto& [peer, bytes] : predicted_sends(planned.call, planned.group_rank)) count(rank, peer, bytes, sum);
      }
  }

  std::vector<AxisTraffic> take() { return std::move(axes_); }

 private:
  struct Call {
    CallOfRank planned{};
    int64_t times = 0;
    size_t axis = 0;  // of axes_
    std::map<int, std::map<int, int64_t>> sent{};  // by place in the group: to each peer
  };
  struct Calls {
    std::vector<Call> same{};
    std::vector<Action> by_shard{};
  };

  Calls plan(int rank) {
    Calls calls;
    std::vector<RepeatedCalls> repeated = repeated_calls(layout_, program_, rank);
    std::set<std::tuple<std::string, Collective, std::string>> keys;  // axes are named in the order of the printed ledger
    for (const RepeatedCalls& of_action : repeated)
      for (const CallOfRank& planned : of_action.calls)
        keys.emplace(call_text(planned.key.id), planned.key.collective, planned.key.axis);
    for (const auto& [text, collective, axis] : keys) axis_index(axis);
    for (RepeatedCalls& of_action : repeated) {
      if (differs_by_shard(layout_, of_action.action)) {
        calls.by_shard.insert(calls.by_shard.end(), static_cast<size_t>(of_action.times), of_action.action);
        continue;
      }
      for (CallOfRank& planned : of_action.calls) {
        const size_t axis = axis_index(planned.key.axis);
        calls.same.push_back({.planned = std::move(planned), .times = of_action.times, .axis = axis});
      }
    }
    return calls;
  }

  void count(int rank, int peer, int64_t bytes, AxisTraffic& sum) const {
    sum.sent += bytes;
    for (size_t i = 0; i < maps_.size(); ++i)
      if (maps_[i].node_of(rank) != maps_[i].node_of(peer)) sum.between_nodes[i] += bytes;
  }

  size_t axis_index(const std::string& ledger_name) {
    const std::string name = axis_of(layout_, ledger_name);
    const auto known = std::find_if(axes_.begin(), axes_.end(), [&](const AxisTraffic& axis) { return axis.axis == name; });
    const auto index = static_cast<size_t>(known - axes_.begin());
    if (known == axes_.end())
      axes_.push_back({.axis = name, .sent = 0, .between_nodes = std::vector<int64_t>(maps_.size(), 0)});
    return index;
  }

  const Layout& layout_;
  const Program& program_;
  const std::vector<RankMap>& maps_;
  const RankClasses classes_;
  std::map<size_t, Calls> calls_;  // by class
  std::vector<AxisTraffic> axes_;
};

}  // namespace

std::vector<AxisTraffic> axis_traffic(const Layout& layout, const Program& program, const std::vector<RankMap>& maps) {
  TrafficSum sum(layout, program, maps);
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) sum.add(rank);
  std::vector<AxisTraffic> axes = sum.take();
  std::stable_sort(axes.begin(), axes.end(), [](const AxisTraffic& a, const AxisTraffic& b) { return a.sent > b.sent; });
  return axes;
}

}  // namespace lockstep::program
