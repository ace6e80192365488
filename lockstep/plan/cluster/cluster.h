// What a job runs on: devices, nodes, and the network between them. Data; where ranks stand on it is placement.h, how long a collective
// takes collective_time.h.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::plan {

enum class Generation { kCpu, kVolta, kAmpere, kHopper, kBlackwell, kCdna, kOther };

// A kind of device, one row of devices.json. Bytes, seconds, FLOP/s of dense products; bandwidths in one direction. 0: it has none.
struct DeviceKind {
  std::string name{};  // "H100-SXM5-80GB"
  Generation generation = Generation::kOther;
  double memory = 0;            // bytes
  double memory_bandwidth = 0;  // bytes/s
  double flops_fp32 = 0, flops_bf16 = 0, flops_fp8 = 0;
  double best_bf16 = 0, best_fp8 = 0;  // share of these that the best measured product reaches; 0: not known
  int processors = 0;      // streaming multiprocessors or compute units
  double link = 0;         // bytes/s to all devices of its domain together (NVLink, xGMI)
  double link_to_one = 0;  // to one of them: less than `link` in a mesh
  double link_efficiency = 0.82;  // of `link` that a ring's payload gets: measured bus bandwidth over it
  double link_latency = 0;  // seconds of a step inside a node; 0: as NCCL has it for the generation, 5 us between ranks on CPUs
  double pcie = 0;         // to its host
  // Times its rates that it computes at while the others of its node stand idle: ranks that share cores. Not of a file: this_machine.h has it.
  double alone = 1;
  double watts = 0;
  std::string origin{};    // of the numbers
};
// ConfigError LS1140 with the nearest names. Short names are known: "h100", "a100" (80 GB), "a100-40", "h200", "b200", "gb200", "mi300x", "v100".
const DeviceKind& device_kind(std::string_view name);
std::vector<std::string> device_names();

// Two levels of switches over nodes: leaves, and spines that join them.
struct Network {
  double nic = 0;               // bytes/s of one NIC, one direction
  double efficiency = 0.94;     // of it that a payload gets
  double latency_leaf = 2.8e-6;   // seconds, between nodes under one leaf
  double latency_spine = 3.7e-6;  // between leaves
  int nodes_per_leaf = 0;       // 0: all under one
  double oversubscription = 1;  // bandwidth of a leaf's NICs over that of its links to the spines
  bool rails = false;           // NIC i of every node is on leaf switch i of its leaf group: neighbours by index meet under one leaf
  bool operator==(const Network&) const = default;
};

// What is slower than the rest: shares of full speed in (0, 1].
struct Slowness {
  std::map<int, double> nodes{};  // their devices
  std::map<int, double> nics{};   // of a node, all its NICs
  bool operator==(const Slowness&) const = default;
};

struct Cluster {
  std::string name{};
  DeviceKind device{};
  int nodes = 1;
  int devices_per_node = 1;
  int domain = 1;            // devices that reach each other by DeviceKind::link; may span nodes (GB200 NVL72: 72 in 18 nodes)
  int nics_per_node = 1;
  Network network{};         // means nothing for one node
  double host_memory = 0;    // bytes of a node
  double disk_bandwidth = 0; // bytes/s of a node
  double price = 0;          // of a device and hour, in money; 0: nobody says
  Slowness slow{};
  double failures = 0;       // of a node and hour; 0: none are counted
  std::string origin{};      // "preset 8xh100", "cluster.toml"
  int devices() const { return nodes * devices_per_node; }
  double nic_of_device() const { return network.nic * nics_per_node / devices_per_node; }  // bytes/s, before efficiency
  int leaf_of(int node) const { return network.nodes_per_leaf > 0 ? node / network.nodes_per_leaf : 0; }
  int rails() const { return network.rails ? std::min(nics_per_node, devices_per_node) : 1; }  // leaf switches of a leaf group
  int rail_of(int device) const { return device % devices_per_node * rails() / devices_per_node; }
  // What goes to another rail goes to the node's device of the receiver's index first, over links of the domain (PXN of NCCL).
  bool forwards() const { return network.rails && domain >= devices_per_node; }
  int leaves() const { return network.nodes_per_leaf > 0 ? (nodes + network.nodes_per_leaf - 1) / network.nodes_per_leaf : 1; }
};

// "8xh100", "8 x H100 SXM5 80GB"; "64 nodes of 8xh200, leaf-spine 400G, 2:1"; "2 racks of gb200"; the name of a preset; a file that ends in
// .toml. Words behind, in any order: leaf-spine, rails or rail-optimised, 400G or 50GB/s (a NIC), NDR, 8 NICs, 2:1 (oversubscription) or
// non-blocking, 32 nodes a leaf, $2.5/h (of a device), InfiniBand, RoCE, 64 devices a domain. What is not said is what is usual for the device;
// leaves are of 32 nodes where words speak of them, or of whole racks. "16 nodes of PRESET" is a part of one. ConfigError LS1141 names the word
// that is not known and those that are; LS1142 for a file, with its line; LS1140 for a device.
Cluster parse_cluster(std::string_view text);
// A file says what is not usual: it begins with like = "64 nodes of 8xh100, rails" or with device.kind = "h100", or describes a device of its own.
// Keys are those that cluster_toml() writes.
Cluster parse_cluster_toml(std::string_view text, std::string_view origin);
std::vector<std::string> cluster_presets();
// As a TOML file that parse_cluster_toml reads to the same cluster.
std::string cluster_toml(const Cluster& cluster);
// One line: "64 nodes of 8 x H200-SXM5-141GB, 8 NICs of 50.0 GB/s, 2 leaves of 32 nodes, 2:1".
std::string describe(const Cluster& cluster);

}  // namespace lockstep::plan
