#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/usual_cluster.h"

namespace lockstep::plan {
namespace {

constexpr double kGb = 1e9;

// Sizes are those of the sources: Selene's 3072 GPUs in arXiv:2104.04473, four scalable units of a SuperPOD, and so on.
struct Preset {
  std::string_view name{}, device{};
  int nodes = 1, devices_per_node = 8;
  double nic = 0;               // bytes/s; 0: as usual for the device
  int nics_per_node = 0;        // likewise
  int nodes_per_leaf = 0;
  double oversubscription = 1;
  bool rails = false;
  bool roce = false;
  std::string_view source{};
};

std::vector<Preset> presets() {
  return {
      {.name = "8xa100", .device = "a100", .source = "HGX A100"},
      {.name = "8xh100", .device = "h100", .source = "HGX H100"},
      {.name = "8xh200", .device = "h200", .source = "HGX H200"},
      {.name = "8xb200", .device = "b200", .source = "HGX B200"},
      {.name = "8xmi300x", .device = "mi300x", .source = "MI300X platform, all eight joined"},
      {.name = "gb200-nvl72", .device = "gb200", .nodes = 18, .devices_per_node = 4, .source = "one rack; NIC of 400 Gb/s a device assumed"},
      {.name = "gb300-nvl72", .device = "gb300", .nodes = 18, .devices_per_node = 4, .source = "one rack; NIC of 800 Gb/s a device assumed"},
      {.name = "selene-a100", .device = "a100", .nodes = 384, .nodes_per_leaf = 20, .rails = true,
       .source = "arXiv:2104.04473: 8 HDR NICs a node, three-level fat tree without oversubscription; 20 nodes a scalable unit (DGX A100 SuperPOD)"},
      {.name = "dgx-h100-superpod", .device = "h100", .nodes = 128, .nodes_per_leaf = 32, .rails = true,
       .source = "DGX H100 SuperPOD: 32 nodes a scalable unit, a leaf switch for each rail, full bisection"},
      {.name = "meta-24k-roce", .device = "h100", .nodes = 3072, .nodes_per_leaf = 384, .oversubscription = 7, .roce = true,
       .source = "arXiv:2407.21783, 3.3.1: pods of 3072 devices with full bisection (a leaf here), 7:1 between pods"},
      {.name = "bytedance-megascale", .device = "a100", .nodes = 1536, .nodes_per_leaf = 64, .rails = true, .roce = true,
       .source = "arXiv:2402.15627: 1:1 at every layer; 64 nodes under 8 top-of-rack switches assumed"},
      {.name = "deepseek-h800", .device = "h800", .nodes = 256, .nodes_per_leaf = 32, .rails = true,
       .source = "arXiv:2505.09343: 2048 devices, a two-layer fat tree for each of 8 rails; 32 nodes a leaf switch of 64 ports"},
      {.name = "a100-4xhdr", .device = "a100", .nodes = 64, .nic = 25 * kGb, .nics_per_node = 4, .source = "800 Gb/s a node of 8 devices"},
      {.name = "h100-500w-grand-teton", .device = "h100-500w", .nodes = 64, .roce = true,
       .source = "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"},
  };
}

Cluster cluster_of(const Preset& preset) {
  Cluster cluster = usual_cluster(device_row(preset.device), preset.nodes, preset.devices_per_node);
  Network& network = cluster.network;
  cluster.name = preset.name;
  cluster.origin = cat("preset ", preset.name, ": ", preset.source);
  if (preset.nic > 0) {
    network.nic = preset.nic;
    network.efficiency = payload_share(network.nic);
  }
  if (preset.nics_per_node > 0) cluster.nics_per_node = preset.nics_per_node;
  network.nodes_per_leaf = preset.nodes_per_leaf;
  network.oversubscription = preset.oversubscription;
  network.rails = preset.rails;
  if (preset.roce) {
    network.latency_leaf = kRoceLeaf;
    network.latency_spine = kRoceSpine;
  }
  return cluster;
}

}  // namespace

double payload_share(double nic) { return nic >= 50 * kGb ? 0.97 : 0.94; }

Cluster usual_cluster(const DeviceRow& row, int nodes, int devices_per_node) {
  Cluster cluster;
  cluster.device = row.kind;
  cluster.nodes = nodes;
  cluster.devices_per_node = devices_per_node;
  cluster.nics_per_node = devices_per_node;
  // A node of fewer devices than usual has a smaller domain, a rack keeps its own.
  cluster.domain = row.node.domain > row.node.devices ? row.node.domain : std::min(row.node.domain, devices_per_node);
  cluster.network.nic = row.node.nic;
  cluster.network.efficiency = payload_share(row.node.nic);
  cluster.host_memory = row.node.host_memory;
  cluster.disk_bandwidth = row.node.disk_bandwidth;
  return cluster;
}

std::optional<Cluster> preset(std::string_view name) {
  const std::string word = lower(name);
  for (const Preset& known : presets())
    if (known.name == word) return cluster_of(known);
  return std::nullopt;
}

std::vector<std::string> cluster_presets() {
  std::vector<std::string> names;
  for (const Preset& known : presets()) names.emplace_back(known.name);
  return names;
}

}  // namespace lockstep::plan
