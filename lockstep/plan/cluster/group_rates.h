// What the links, NICs and switches on its way leave to a group: bytes/s of payload, one direction.
#pragma once

#include <algorithm>

#include "lockstep/plan/cluster/placement.h"

namespace lockstep::plan {

// Devices that reach each other without NICs: a domain, or a node of several.
inline int devices_of_unit(const Cluster& cluster) { return std::max(cluster.domain, cluster.devices_per_node); }

struct GroupRates {
  int units = 1;           // that the group touches: nodes, or domains where these span nodes
  double in_unit = 1;      // its ranks in one, on average
  bool links = true;       // they meet over links of their domain, else over PCIe
  double inside = 0;       // of a rank to its neighbours in the unit, all at once
  double pair = 0;         // of a rank to one of them
  double network = 0;      // of the ranks of a unit together to others: NICs, shared, and up-links of leaves. 0: they do not leave
  double one_rank = 0;     // of one rank alone to another unit
  double to_leaves = 0;    // of a rank to other leaves, all ranks of all nodes at once. 0: they do not leave
};
GroupRates rates_of(const Cluster& cluster, const GroupShape& group);

}  // namespace lockstep::plan
