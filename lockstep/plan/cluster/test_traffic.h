// Layouts and clusters for the tests of traffic.
#pragma once

#include <string>

#include "lockstep/plan/cluster/links.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/passes.h"

namespace lockstep::plan {

// A run of small sizes; `change` it.
struct SmallRun {
  const char* preset = "llama-test";
  int ranks = 1;
  int64_t micro_batch = 2, global_batch = 16, seq_len = 32;
  int64_t layers = 0;  // 0: the preset's
};
template <typename Change>
program::Layout small_layout(const SmallRun& of, const Change& change) {
  config::RunConfig config;
  config.model.preset = of.preset;
  if (of.layers > 0) config.model.layers = of.layers;
  config.train.micro_batch = of.micro_batch;
  config.train.global_batch = of.global_batch;
  config.train.seq_len = of.seq_len;
  config.parallel.bucket_mib = 0.0625;
  change(config);
  return program::make_layout(config, arch::resolve_model(config.model), of.ranks);
}

// Nodes with devices whose ports have 100 GB/s and NICs of 10 GB/s, one for each device. Times mean nothing.
struct SmallCluster {
  int nodes = 1, devices_per_node = 4, domain = 4, nodes_per_leaf = 0;
  bool rails = false;
  double oversubscription = 1;
};
inline Cluster cluster_of(const SmallCluster& of) {
  Cluster cluster;
  cluster.device.link = cluster.device.link_to_one = 100e9;
  cluster.device.pcie = 30e9;
  cluster.nodes = of.nodes;
  cluster.devices_per_node = of.devices_per_node;
  cluster.domain = of.domain;
  cluster.nics_per_node = of.devices_per_node;
  cluster.network.nic = 10e9;
  cluster.network.nodes_per_leaf = of.nodes_per_leaf;
  cluster.network.rails = of.rails;
  cluster.network.oversubscription = of.oversubscription;
  return cluster;
}

inline const AxisLoad& axis_of(const Traffic& traffic, const std::string& name) {
  static const AxisLoad none;
  for (const AxisLoad& axis : traffic.axes)
    if (axis.axis == name) return axis;
  return none;
}
inline double on(const AxisLoad& axis, LinkClass link) { return axis.on[static_cast<size_t>(link)]; }

}  // namespace lockstep::plan
