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
      rails_(cluster_.network.rails ? std::min(cluster_.nics_per_node, cluster_.devices_per_node) : 1),
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
    place.leaf = cluster_.leaf_of(place.node) * rails_ + place.device % of_node * rails_ / of_node;
    place.both = both.try_emplace({place.near, place.leaf}, static_cast<int>(both.size())).first->second;
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
}

void LinkCounter::add(const GroupSends& sends, const std::vector<int>& members) {
  AxisLoad& axis = axis_of(sends.axis);
  const double before = axis.sent;
  if (!sends.by_sender.empty()) add_all_to_all(sends, members, axis);
  for (size_t from = 0; from < sends.others.size(); ++from)
    for (const GroupSends::Send& sent : sends.others[from])
      send(places_[static_cast<size_t>(members[from])], places_[static_cast<size_t>(members[static_cast<size_t>(sent.to)])], sent.bytes, axis);
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
  if (from.leaf != to.leaf) over(LinkClass::kLeafUp, from.leaf, to.leaf);
}

// Member by member, not pair by pair: those that share a domain, a node or a leaf with it are counted before.
void LinkCounter::add_all_to_all(const GroupSends& sends, const std::vector<int>& members, AxisLoad& axis) {
  Sum all;
  const auto place_of = [&](size_t member) -> const Place& { return places_[static_cast<size_t>(members[member])]; };
  const auto sums_at = [&](const Place& place, const auto& change) {
    change(of_domain_[static_cast<size_t>(place.domain)]);
    change(of_near_[static_cast<size_t>(place.near)]);
    change(of_leaf_[static_cast<size_t>(place.leaf)]);
    change(of_both_[static_cast<size_t>(place.both)]);
  };
  const auto sum_of = [&](size_t member) { return Sum{1, sends.by_sender[member], sends.by_receiver[member]}; };
  for (size_t i = 0; i < members.size(); ++i) {
    all = all + sum_of(i);
    sums_at(place_of(i), [&](Sum& sum) { sum = sum + sum_of(i); });
  }
  for (size_t i = 0; i < members.size(); ++i) {
    const Place& place = place_of(i);
    const Sum own = sum_of(i);
    const auto with = [&](const Sum& peers) {
      return Flow{.out = peers.count * own.sent + peers.got, .in = peers.count * own.got + peers.sent};
    };
    const Sum domain = of_domain_[static_cast<size_t>(place.domain)], near = of_near_[static_cast<size_t>(place.near)];
    const Sum same_leaf = of_leaf_[static_cast<size_t>(place.leaf)] - of_both_[static_cast<size_t>(place.both)];
    axis.sent += with(all - own).out;
    flow(LinkClass::kDomain, place.device, with(domain - own), axis);
    if (near.count > domain.count) flow(LinkClass::kHost, place.device, with(near - domain), axis);
    if (all.count == near.count) continue;
    flow(LinkClass::kNic, place.node, with(all - near), axis);
    flow(LinkClass::kLeafUp, place.leaf, with(all - near - same_leaf), axis);
  }
  for (size_t i = 0; i < members.size(); ++i) sums_at(place_of(i), [](Sum& sum) { sum = {}; });
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
