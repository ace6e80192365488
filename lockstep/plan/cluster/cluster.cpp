#include <algorithm>
#include <cstdio>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/cluster_words.h"
#include "lockstep/plan/cluster/usual_cluster.h"

namespace lockstep::plan {
namespace {

std::string gigabytes(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GB/s", rate / 1e9);
  return text;
}

std::string leaves_text(const Cluster& cluster) {
  const Network& network = cluster.network;
  if (network.nodes_per_leaf == 0) return ", one leaf";
  const int leaves = cluster.leaves();
  const std::string leaf = network.rails ? "leaf group" : "leaf";
  const std::string several = network.rails ? "leaf groups" : "leaves";
  return cat(", ", leaves, " ", leaves == 1 ? leaf : several, " of ", network.nodes_per_leaf, " nodes", network.rails ? " on rails" : "", ", ",
             number_text(network.oversubscription), ":1");
}

}  // namespace

Cluster parse_cluster(std::string_view text) {
  if (!text.ends_with(".toml")) return parse_cluster_words(text);
  const std::filesystem::path path(text);
  return parse_cluster_toml(read_file(path), path.string());
}

std::optional<ClusterProblem> problem_of(const Cluster& cluster) {
  const int domain = cluster.domain, devices = cluster.devices_per_node;
  const int64_t all = int64_t{cluster.nodes} * devices;
  if (all > kMostDevices)
    return ClusterProblem{"nodes", cat("nodes(", cluster.nodes, ") x devices_per_node(", devices, ") = ", all, ", more than ", kMostDevices)};
  if (std::max(domain, devices) % std::min(domain, devices) != 0)
    return ClusterProblem{"domain", cat("domain(", domain, ") is neither a whole part nor a multiple of devices_per_node(", devices, ")")};
  if (cluster.nodes > 1 && cluster.network.nic <= 0) return ClusterProblem{"network.nic", cat(cluster.nodes, " nodes without a bandwidth of NICs")};
  if (domain > 1 && (cluster.device.link <= 0 || cluster.device.link_to_one <= 0))
    return ClusterProblem{"device.link", cat("a domain of ", domain, " whose devices have no links")};
  if (devices > 1 && domain < devices && cluster.device.pcie <= 0)
    return ClusterProblem{"device.pcie", cat("a domain of ", domain, " in a node of ", devices, " whose devices have no PCIe")};
  for (const auto* slow : {&cluster.slow.nodes, &cluster.slow.nics})
    for (const auto& [node, share] : *slow) {
      if (node < 0 || node >= cluster.nodes) return ClusterProblem{"slow", cat("node ", node, " of ", cluster.nodes, " is slow")};
      if (!(share > 0 && share <= 1)) return ClusterProblem{"slow", cat("node ", node, " has ", number_text(share), " of full speed")};
    }
  return std::nullopt;
}

std::string describe(const Cluster& cluster) {
  std::string text = cat(cluster.nodes > 1 ? cat(cluster.nodes, " nodes of ") : "", cluster.devices_per_node, " x ", cluster.device.name);
  if (cluster.domain != cluster.devices_per_node && cluster.domain > 1) text += cat(", domains of ", cluster.domain);
  if (cluster.nodes > 1)
    text += cat(", ", cluster.nics_per_node, cluster.nics_per_node == 1 ? " NIC of " : " NICs of ", gigabytes(cluster.network.nic), leaves_text(cluster));
  for (const auto& [node, share] : cluster.slow.nodes) text += cat(", node ", node, " at ", number_text(share));
  for (const auto& [node, share] : cluster.slow.nics) text += cat(", NICs of node ", node, " at ", number_text(share));
  return text;
}

}  // namespace lockstep::plan
