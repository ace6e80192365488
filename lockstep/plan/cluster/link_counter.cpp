#include "lockstep/plan/cluster/link_counter.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::plan {
namespace {

constexpr int kMostNodes = 4096;  // that are told one by one

constexpr size_t index_of(LinkClass link) { return static_cast<size_t>(link); }

}  // namespace

LinkCounter::LinkCounter(const Placement& placement, int ranks)
    : placement_(placement),
      cluster_(placement.cluster()),
      rails_(cluster_.rails()),
      places_(static_cast<size_t>(ranks)) {
  const int of_node = cluster_.devices_per_node, of_domain = cluster_.domain;
  LOCKSTEP_CHECK(of_domain % of_node == 0 || of_node % of_domain == 0, "domains of ", of_domain, " devices in nodes of ", of_node);
  std::map<std::pair<int, int>, int> both;
  for (int rank = 0; rank < ranks; ++rank) {
    Place& place = places_[static_cast<size_t>(rank)];
    place.device = placement.device_of(rank);
    place.domain = place.device / of_domain;
    place.node = place.device / of_node;
    place.near = of_domain > of_node ? place.domain : place.node;
    place.leaf = cluster_.leaf_of(place.node) * rails_ + cluster_.rail_of(place.device);
    const int below = cluster_.forwards() ? cluster_.leaf_of(place.node) : place.leaf;
    place.both = both.try_emplace({place.near, below}, static_cast<int>(both.size())).first->second;
  }
  const auto devices = static_cast<size_t>(cluster_.devices());
  flows_[index_of(LinkClass::kDomain)].resize(devices);
  flows_[index_of(LinkClass::kHost)].resize(devices);
  flows_[index_of(LinkClass::kNic)].resize(static_cast<size_t>(cluster_.nodes));
  flows_[index_of(LinkClass::kLeafUp)].resize(static_cast<size_t>(cluster_.leaves() * rails_));
  of_domain_.resize(devices);
  of_near_.resize(devices);
  of_leaf_.resize(flows_[index_of(LinkClass::kLeafUp)].size());
  of_both_.resize(both.size());
  if (!cluster_.forwards()) return;
  const int near = cluster_.devices() / std::max(of_node, of_domain) + 1;  // the last may be part of one
  near_by_index_.resize(static_cast<size_t>(near * of_node));
  group_by_index_.resize(static_cast<size_t>(cluster_.leaves() * of_node));
  both_by_index_.resize(both.size() * static_cast<size_t>(of_node));
}

void LinkCounter::add(const GroupSends& sends, const std::vector<int>& members) {
  AxisLoad& axis = axis_of(sends.axis);
  const double before = axis.sent;
  if (!sends.by_sender.empty()) add_all_to_all(sends, members, axis);
  for (size_t from = 0; from < sends.others.size(); ++from)
    for (const GroupSends::Send& sent : sends.others[from])
      send(place_of(members[from]), place_of(members[static_cast<size_t>(sent.to)]), sent.bytes, axis);
  if (sends.synchronises) reduction_ += axis.sent - before;
}

void LinkCounter::send(const Place& from, const Place& to, double bytes, AxisLoad& axis) {
  axis.sent += bytes;
  const auto over = [&](LinkClass link, int out, int in) {
    flow(link, out, {.out = bytes}, axis);
    flow(link, in, {.in = bytes}, axis);
  };
  if (from.domain == to.domain) return over(LinkClass::kDomain, from.device, to.device);
  if (from.node == to.node) return over(LinkClass::kHost, from.device, to.device);
  over(LinkClass::kNic, from.node, to.node);
  const int rail = to.leaf % rails_;
  const bool forwarded = cluster_.forwards() && from.leaf % rails_ != rail;
  if (forwarded) over(LinkClass::kDomain, from.device, forwarder(from.node, to.device));
  const int leaf = forwarded ? from.leaf - from.leaf % rails_ + rail : from.leaf;
  if (leaf != to.leaf) over(LinkClass::kLeafUp, leaf, to.leaf);
}

// Member by member, not pair by pair: those that share a domain, a node or a leaf with it are counted before.
void LinkCounter::add_all_to_all(const GroupSends& sends, const std::vector<int>& members, AxisLoad& axis) {
  const auto sums_at = [&](const Place& place, const auto& change) {
    change(of_domain_[static_cast<size_t>(place.domain)]);
    change(of_near_[static_cast<size_t>(place.near)]);
    change(of_leaf_[static_cast<size_t>(place.leaf)]);
    change(of_both_[static_cast<size_t>(place.both)]);
  };
  std::vector<Sum> of_members;
  Sum all;
  for (size_t i = 0; i < members.size(); ++i) {
    const Sum own = of_members.emplace_back(Sum{1, sends.by_sender[i], sends.by_receiver[i]});
    all = all + own;
    sums_at(place_of(members[i]), [&](Sum& sum) { sum = sum + own; });
  }
  for (size_t i = 0; i < members.size(); ++i) {
    const Place& place = place_of(members[i]);
    const Sum own = of_members[i];
    const Sum domain = of_domain_[static_cast<size_t>(place.domain)], near = of_near_[static_cast<size_t>(place.near)];
    axis.sent += between(own, all - own).out;
    flow(LinkClass::kDomain, place.device, between(own, domain - own), axis);
    if (near.count > domain.count) flow(LinkClass::kHost, place.device, between(own, near - domain), axis);
    if (all.count == near.count) continue;
    flow(LinkClass::kNic, place.node, between(own, all - near), axis);
    if (cluster_.forwards()) continue;
    const Sum same_leaf = of_leaf_[static_cast<size_t>(place.leaf)] - of_both_[static_cast<size_t>(place.both)];
    flow(LinkClass::kLeafUp, place.leaf, between(own, all - near - same_leaf), axis);
  }
  for (const int member : members) sums_at(place_of(member), [](Sum& sum) { sum = {}; });
  if (cluster_.forwards()) add_forwarded(of_members, members, axis);
}

LinkCounter::Flow LinkCounter::between(const Sum& own, const Sum& peers) {
  return {.out = peers.count * own.sent + peers.got, .in = peers.count * own.got + peers.sent};
}

// What leaves a node reaches the rail of its receiver inside the node, and crosses the spines to another leaf group alone.
void LinkCounter::add_forwarded(const std::vector<Sum>& own, const std::vector<int>& members, AxisLoad& axis) {
  const auto of_node = static_cast<size_t>(cluster_.devices_per_node);
  const auto group_of = [&](const Place& place) { return static_cast<size_t>(place.leaf / rails_); };
  const auto sums_at = [&](const Place& place, size_t index, const auto& change) {
    change(near_by_index_[static_cast<size_t>(place.near) * of_node + index]);
    change(group_by_index_[group_of(place) * of_node + index]);
    change(both_by_index_[static_cast<size_t>(place.both) * of_node + index]);
  };
  const auto index_in_node = [&](const Place& place) { return static_cast<size_t>(place.device) % of_node; };
  std::vector<Sum> all(of_node);
  for (size_t i = 0; i < members.size(); ++i) {
    const Place& place = place_of(members[i]);
    all[index_in_node(place)] = all[index_in_node(place)] + own[i];
    sums_at(place, index_in_node(place), [&](Sum& sum) { sum = sum + own[i]; });
  }
  for (size_t i = 0; i < members.size(); ++i) {
    const Place& place = place_of(members[i]);
    for (size_t index = 0; index < of_node; ++index) {
      const Sum outside = all[index] - near_by_index_[static_cast<size_t>(place.near) * of_node + index];
      if (outside.count == 0) continue;
      const int there = forwarder(place.node, static_cast<int>(index)), rail = cluster_.rail_of(there);
      if (rail != cluster_.rail_of(place.device)) {
        const double bytes = between(own[i], outside).out;
        flow(LinkClass::kDomain, place.device, {.out = bytes}, axis);
        flow(LinkClass::kDomain, there, {.in = bytes}, axis);
      }
      const Sum same_group = group_by_index_[group_of(place) * of_node + index] - both_by_index_[static_cast<size_t>(place.both) * of_node + index];
      const Flow beyond = between(own[i], outside - same_group);
      flow(LinkClass::kLeafUp, place.leaf - place.leaf % rails_ + rail, {.out = beyond.out}, axis);
      flow(LinkClass::kLeafUp, place.leaf, {.in = beyond.in}, axis);
    }
  }
  for (const int member : members) sums_at(place_of(member), index_in_node(place_of(member)), [](Sum& sum) { sum = {}; });
}

AxisLoad& LinkCounter::axis_of(const std::string& name) {
  const auto known = std::ranges::find(axes_, name, &AxisLoad::axis);
  return known != axes_.end() ? *known : axes_.emplace_back(AxisLoad{.axis = name});
}

void LinkCounter::flow(LinkClass link, int at, const Flow& bytes, AxisLoad& axis) {
  Flow& known = flows_[index_of(link)][static_cast<size_t>(at)];
  known.out += bytes.out;
  known.in += bytes.in;
  axis.on[index_of(link)] += bytes.out;
}

double LinkCounter::capacity(LinkClass link, int at) const {
  const Network& network = cluster_.network;
  const double of_node = network.nic * cluster_.nics_per_node;
  switch (link) {
    case LinkClass::kDomain:
      return cluster_.device.link;
    case LinkClass::kHost:
      return cluster_.device.pcie;
    case LinkClass::kNic: {
      const auto slow = cluster_.slow.nics.find(at);
      return slow == cluster_.slow.nics.end() ? of_node : of_node * slow->second;
    }
    case LinkClass::kLeafUp:
      return (network.nodes_per_leaf > 0 ? network.nodes_per_leaf : cluster_.nodes) * of_node / rails_ / network.oversubscription;
  }
  throw InternalError("no such class of links");
}

LinkLoad LinkCounter::load(LinkClass link) const {
  const std::vector<Flow>& flows = flows_[index_of(link)];
  LinkLoad load{.link = link, .capacity = capacity(link, 0)};
  double longest = 0;
  for (size_t i = 0; i < flows.size(); ++i) {
    load.all += flows[i].out;
    const double bytes = std::max(flows[i].out, flows[i].in), there = capacity(link, static_cast<int>(i));
    const double takes = there > 0 ? bytes / there : bytes;
    if (takes <= longest) continue;
    longest = takes;
    load.busiest = bytes;
    load.where = static_cast<int>(i);
    load.capacity = there;
  }
  return load;
}

Traffic LinkCounter::traffic() const {
  Traffic traffic{.axes = axes_, .reduction = reduction_, .ranks = static_cast<int>(places_.size())};
  std::ranges::stable_sort(traffic.axes, std::ranges::greater(), &AxisLoad::sent);
  if (cluster_.domain > 1) traffic.links.push_back(load(LinkClass::kDomain));
  if (cluster_.domain < cluster_.devices_per_node) traffic.links.push_back(load(LinkClass::kHost));
  if (cluster_.nodes > 1) traffic.links.push_back(load(LinkClass::kNic));
  if (flows_[index_of(LinkClass::kLeafUp)].size() > 1 && cluster_.nodes > 1) traffic.links.push_back(load(LinkClass::kLeafUp));
  const std::vector<Flow>& nodes = flows_[index_of(LinkClass::kNic)];
  for (size_t i = 0; i < nodes.size() && i < kMostNodes; ++i) traffic.nodes.push_back({.out = nodes[i].out, .in = nodes[i].in});
  return traffic;
}

}  // namespace lockstep::plan
