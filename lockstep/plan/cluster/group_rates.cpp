#include "lockstep/plan/cluster/group_rates.h"

#include <limits>

#include "lockstep/base/check.h"
#include "lockstep/plan/cluster/collective_time.h"

namespace lockstep::plan {
namespace {

// Of PCIe, what a ring's payload gets: NCCL counts 12 GB/s of the 15.8 of 16 lanes of the third generation (src/graph/topo.h).
constexpr double kPcieShare = 0.76;

void add_inside(GroupRates& rates, const Cluster& cluster, const GroupShape& group) {
  const DeviceKind& device = cluster.device;
  rates.links = group.largest_domain > 1 && rates.in_unit <= group.largest_domain;
  // In a mesh a device has a link to each of the others: those of the group alone carry its bytes.
  const double link = std::min(device.link, device.link_to_one * std::max(1, group.largest_domain - 1)) * device.link_efficiency;
  const double pcie = device.pcie * kPcieShare;
  rates.inside = (rates.links ? link : group.largest_domain > 1 ? std::min(link, pcie) : pcie) * group.slow_devices;
  rates.pair = (rates.links ? std::min(device.link, device.link_to_one) * device.link_efficiency : pcie) * group.slow_devices;
  LOCKSTEP_CHECK(rates.in_unit <= 1 || rates.inside > 0, "devices of ", device.name, " have neither links nor PCIe");
}

void add_network(GroupRates& rates, const Cluster& cluster, const GroupShape& group) {
  const Network& network = cluster.network;
  const double nic = network.nic * network.efficiency * group.slow_nics, node = nic * cluster.nics_per_node;
  LOCKSTEP_CHECK(nic > 0, "a group of ", group.nodes, " nodes on a network without NICs");
  // A device sends over the NICs beside it: it has one where a node has fewer than devices.
  const double of_rank = nic * std::max(1.0, static_cast<double>(cluster.nics_per_node) / cluster.devices_per_node);
  const double nodes_of_unit = std::max(1.0, static_cast<double>(group.nodes) / rates.units);
  rates.network = std::min(node / group.sharing, of_rank * group.per_node) * nodes_of_unit;
  rates.one_rank = std::min(node / group.sharing, of_rank);
  if (group.leaves == 1) return;
  // A ring leaves a leaf once: its up-links are shared by the groups there, which are as many as its ranks that send allow.
  const double nodes_of_leaf = network.nodes_per_leaf > 0 ? network.nodes_per_leaf : cluster.nodes;
  const double up = node * nodes_of_leaf / network.oversubscription;
  const double senders = static_cast<double>(group.sharing) * group.per_node;  // on a node
  const double groups = std::max(1.0, nodes_of_leaf * senders * group.leaves / group.ranks);
  rates.network = std::min(rates.network, up / groups);
  rates.one_rank = std::min(rates.one_rank, up / groups);
  rates.to_leaves = node / network.oversubscription / senders;
}

}  // namespace

GroupRates rates_of(const Cluster& cluster, const GroupShape& group) {
  GroupRates rates;
  rates.units = cluster.domain > cluster.devices_per_node ? group.domains : group.nodes;
  rates.in_unit = static_cast<double>(group.ranks) / rates.units;
  add_inside(rates, cluster, group);
  if (rates.units > 1) add_network(rates, cluster, group);
  return rates;
}

double group_bandwidth(const Cluster& cluster, const GroupShape& group) {
  const GroupRates rates = rates_of(cluster, group);
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  return std::min(rates.in_unit > 1 ? rates.inside : kNoLimit, rates.units > 1 ? rates.network : kNoLimit);
}

}  // namespace lockstep::plan
