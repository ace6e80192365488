// Clusters to start from: what is usual for a device, and those that have a name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/plan/cluster/device_table.h"

namespace lockstep::plan {

inline constexpr int kUsualNodesPerLeaf = 32;  // a scalable unit of DGX SuperPOD
inline constexpr int kMostDevices = 1 << 24;

// `nodes` of `devices_per_node` devices, each with the NIC that is usual, all under one leaf.
Cluster usual_cluster(const DeviceRow& row, int nodes, int devices_per_node);
// Of the bandwidth of a NIC, what a payload gets: 23.5 GB/s of 200 Gb/s, 48.5 of 400 (aliyun/SimAI constants).
double payload_share(double nic);
// 64 bytes from end to end over RoCE; the defaults of Network are those of InfiniBand (arXiv:2505.09343, Table 5).
inline constexpr double kRoceLeaf = 3.6e-6, kRoceSpine = 5.6e-6;

// Nothing where no preset has that name; capitals do not matter.
std::optional<Cluster> preset(std::string_view name);

// `text` in lower case.
std::string lower(std::string_view text);
// Why its numbers do not go together, and the key to look at first ("domain"); nothing where they do.
struct ClusterProblem {
  std::string key{};
  std::string what{};
};
std::optional<ClusterProblem> problem_of(const Cluster& cluster);

}  // namespace lockstep::plan
