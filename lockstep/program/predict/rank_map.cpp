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

// Where a rank stands in the line of all ranks, tp first and the data axes last.
int place_of(const Layout& layout, int rank) {
  const mesh::PerAxis at = layout.mesh.coordinates(rank);
  int place = 0;
  for (const Axis axis : {Axis::kDpReplicate, Axis::kDpShard, Axis::kPp, Axis::kCp, Axis::kTp})
    place = place * layout.mesh.degree(axis) + at[axis];
  return place;
}

// Between neighbours along an axis of several ranks.
int stride(const Layout& layout, Axis axis) {
  mesh::PerAxis next;
  next[axis] = 1;
  return layout.mesh.rank(next);
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
  const int copies = world_size / layout.pipeline.ranks;  // pp varies slowest
  for (const int first : stage_ranks(layout)) {
    if (layout.tied_peer(first) <= first) continue;
    tied.count += copies;
    for (int rank = first; rank < first + copies && std::ssize(tied.groups) < most; ++rank)
      tied.groups.push_back({rank, layout.tied_peer(rank)});
  }
  if (tied.count > 0) found.push_back(std::move(tied));
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
  std::vector<std::vector<int>> copies(static_cast<size_t>(layout.mesh.degree(layout.samples())));
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank)
    copies[static_cast<size_t>(layout.mesh.group_rank(rank, layout.samples()))].push_back(map.node[static_cast<size_t>(rank)]);
  for (std::vector<int>& nodes : copies) {
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  }
  return copies;
}

namespace {

// Adds up what ranks send, one after the other. The calls of a class are planned for its first rank; those of another have
// their groups moved by as much as that one stands away along the axes on which the group does not lie.
class TrafficSum {
 public:
  TrafficSum(const Layout& layout, const Program& program, const std::vector<RankMap>& maps)
      : layout_(layout), program_(program), maps_(maps) {}

  void add(int rank) {
    const auto [known, fresh] = classes_.try_emplace(class_of(program_, layout_, rank));
    if (fresh) known->second = plan(rank);
    Calls& calls = known->second;
    const mesh::PerAxis at = layout_.mesh.coordinates(rank);
    for (Call& call : calls.same) {
      int shift = 0;
      for (const Axis axis : mesh::kAxes) shift += (at[axis] - calls.at[axis]) * call.strides[axis];
      const int place = place_in(call.planned.call.group, rank - shift);
      const auto [sent, is_new] = call.sent.try_emplace(place);
      if (is_new) sent->second = predicted_sends(call.planned.call, place);
      for (const auto& [peer, bytes] : sent->second) count(rank, peer + shift, call.times * bytes, axes_[call.axis]);
    }
    for (const Action& action : calls.by_shard)
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
    size_t axis = 0;          // of axes_
    mesh::PerAxis strides{};  // between ranks along the axes on which its group does not lie
    std::map<int, std::map<int, int64_t>> sent{};  // by place in the group: to each peer
  };
  struct Calls {
    mesh::PerAxis at{};  // of the rank that they are planned for
    std::vector<Call> same{};
    std::vector<Action> by_shard{};
  };

  Calls plan(int rank) {
    Calls calls{.at = layout_.mesh.coordinates(rank)};
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
        const mesh::PerAxis strides = strides_beside(planned.call.group);
        calls.same.push_back({.planned = std::move(planned), .times = of_action.times, .axis = axis, .strides = strides});
      }
    }
    return calls;
  }

  // A group lies on the axes along which its first and its last rank differ.
  mesh::PerAxis strides_beside(const std::vector<int>& group) const {
    const mesh::PerAxis first = layout_.mesh.coordinates(group.front()), last = layout_.mesh.coordinates(group.back());
    mesh::PerAxis strides;
    for (const Axis axis : mesh::kAxes)
      if (first[axis] == last[axis] && layout_.mesh.degree(axis) > 1) strides[axis] = stride(layout_, axis);
    return strides;
  }

  // Groups ascend, but for the two ranks of a transfer.
  static int place_in(const std::vector<int>& group, int rank) {
    const auto place = group.size() == 2 ? std::find(group.begin(), group.end(), rank)
                                         : std::lower_bound(group.begin(), group.end(), rank);
    LOCKSTEP_CHECK(place != group.end() && *place == rank, "rank ", rank, " is not in its group");
    return static_cast<int>(place - group.begin());
  }

  void count(int rank, int peer, int64_t bytes, AxisTraffic& sum) const {
    sum.sent += bytes;
    for (size_t i = 0; i < maps_.size(); ++i)
      if (maps_[i].node[static_cast<size_t>(rank)] != maps_[i].node[static_cast<size_t>(peer)]) sum.between_nodes[i] += bytes;
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
  std::map<RankClass, Calls> classes_;
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
