// Adds up what groups send, link by link.
#pragma once

#include <array>
#include <vector>

#include "lockstep/plan/cluster/group_sends.h"
#include "lockstep/plan/cluster/links.h"

namespace lockstep::plan {

class LinkCounter {
 public:
  // InternalError where domains and nodes of the cluster do not divide each other.
  LinkCounter(const Placement& placement, int ranks);

  // The sends of one group, whose members these ranks are, in its order.
  void add(const GroupSends& sends, const std::vector<int>& members);
  Traffic traffic() const;

 private:
  // Where a rank stands: indices of flows, and of what `meet` says. `near`: the domain or the node, whichever is larger; `both`: what of
  // it is below one leaf switch, or where nodes forward, in one leaf group.
  struct Place {
    int device = 0, domain = 0, node = 0, leaf = 0, near = 0, both = 0;
  };
  struct Flow {
    double out = 0, in = 0;
  };
  // Of members: how many, and what they send to each and get from each.
  struct Sum {
    double count = 0, sent = 0, got = 0;
    Sum operator-(const Sum& other) const { return {count - other.count, sent - other.sent, got - other.got}; }
    Sum operator+(const Sum& other) const { return {count + other.count, sent + other.sent, got + other.got}; }
  };
  static Flow between(const Sum& own, const Sum& peers);  // a member and others
  void send(const Place& from, const Place& to, double bytes, AxisLoad& axis);
  void add_all_to_all(const GroupSends& sends, const std::vector<int>& members, AxisLoad& axis);
  void add_forwarded(const std::vector<Sum>& own, const std::vector<int>& members, AxisLoad& axis);
  const Place& place_of(int rank) const { return places_[static_cast<size_t>(rank)]; }
  int forwarder(int node, int device) const { return node * cluster_.devices_per_node + device % cluster_.devices_per_node; }
  AxisLoad& axis_of(const std::string& name);
  void flow(LinkClass link, int at, const Flow& bytes, AxisLoad& axis);
  LinkLoad load(LinkClass link) const;
  double capacity(LinkClass link, int at) const;

  const Placement& placement_;
  const Cluster& cluster_;
  const int rails_;  // leaf switches of a leaf group
  std::vector<Place> places_;
  std::array<std::vector<Flow>, kLinkClasses> flows_;
  std::vector<Sum> of_domain_, of_leaf_, of_near_, of_both_;  // of one group at a time
  std::vector<Sum> near_by_index_, group_by_index_, both_by_index_;  // likewise, where nodes forward: by device of a node
  std::vector<AxisLoad> axes_;
  double reduction_ = 0;
};

}  // namespace lockstep::plan
