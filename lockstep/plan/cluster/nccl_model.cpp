#include "lockstep/plan/cluster/nccl_model.h"

#include <algorithm>
#include <cmath>

namespace lockstep::plan {
namespace {

constexpr double kGb = 1e9, kUs = 1e-6;

// LL, LL128, Simple. Of a call, and of one of its steps over NVLink, PCIe and the network.
using Triple = std::array<double, 3>;
struct Latencies {
  Triple base{}, link{}, pcie{}, network{};
};
constexpr Latencies kRing = {{6.6, 14.0, 8.4}, {0.6, 1.9, 3.4}, {1.0, 2.5, 5.7}, {2.7, 4.0, 14.0}};
constexpr Latencies kTree = {{6.8, 14.0, 8.4}, {0.6, 1.25, 4.0}, {1.0, 1.9, 4.0}, {5.0, 8.5, 14.0}};
constexpr double kSimpleBase = kRing.base[2] * kUs;
constexpr double kNvlsStep = 25 * kUs, kNvlsTreeStep = 20.9 * kUs;
// A rank that works for the network cannot go on sooner (getNetOverhead).
constexpr double kNetworkOverhead = 1 * kUs;
constexpr double kModelLeaf = 2.8 * kUs;  // the network that the model's steps are of: InfiniBand under one leaf (arXiv:2505.09343, Table 5)

constexpr double kLl128Share = 0.92, kTreeShare = 0.92, kLlShare = 0.5, kTreeLlShare = 1 / 3.8;
constexpr double kTreeLl128Share = 120.0 / 128, kTreeLl128InNode = 7.0 / 9;

// Of the wire, what NVLS sums and copies get: 475 GB/s of bus bandwidth among 8 H100 (aliyun/SimAI constants) are 271 GB/s of payload, of which each
// rank moves 1 + 1/8 both ways; Blackwell as nvlsEfficiency has it.
constexpr double kNvlsHopper = 0.823, kNvlsBlackwell = 0.74;
// Of memory bandwidth, the copy of a ring's last chunk to its place: bus bandwidth grows from 193 to 227 GB/s from 2 to 8 A100 by it.
constexpr double kCopyShare = 0.27;
// Of ring rates, what all-to-all gets: GB200 0.77 inside a domain, H100 0.83 to 0.92 between nodes (Megatron Core MoE report; kernel_timings of
// published_runs.json; aliyun/SimAI ata_ratio.csv has 0.75 to 0.95).
constexpr double kPairsInside = 0.8, kPairsNetwork = 0.9;

double start_of(Generation generation) {
  // Measured latencies less the model's: 46 to 79 us against 15 to 56 for 2 to 8 A100 (VIA-Research/vTrain trace/a100), 40 against 32 for 8 H100
  // (aliyun/SimAI nvlink_ratio.csv).
  return generation == Generation::kHopper || generation == Generation::kBlackwell ? 8 * kUs : 25 * kUs;
}

// Most bytes/s of LL in one, two and more nodes (llMaxBws); what NCCL does not know counts as Ampere.
Triple ll_limits(Generation generation) {
  switch (generation) {
    case Generation::kVolta:
      return {39.0 * kGb, 39.0 * kGb, 20.4 * kGb};
    case Generation::kHopper:
      return {141 * kGb, 45 * kGb, 35 * kGb};
    case Generation::kBlackwell:
      return {282 * kGb, 90 * kGb, 70 * kGb};
    default:
      return {87.7 * kGb, 22.5 * kGb, 19.0 * kGb};
  }
}

// Trees fall behind their bandwidth at sizes between one packet and many: half of it near 512 KiB (NCCL has a table by size and protocol).
double tree_correction(double bytes) {
  constexpr double kBegin = 10, kWorst = 19, kEnd = 28, kLeast = 0.5;  // log2
  const double size = std::log2(std::max(bytes, 1.0));
  if (size <= kBegin || size >= kEnd) return 1;
  const double to_worst = size < kWorst ? (size - kBegin) / (kWorst - kBegin) : (kEnd - size) / (kEnd - kWorst);
  return 1 - (1 - kLeast) * to_worst;
}

size_t index(Protocol protocol) { return static_cast<size_t>(protocol); }

}  // namespace

NcclModel::NcclModel(const Cluster& cluster, const GroupShape& group)
    : cluster_(cluster),
      group_(group),
      rates_(rates_of(cluster, group)),
      rate_(group_bandwidth(cluster, group)),
      start_(start_of(cluster.device.generation)) {}

CollectiveTime NcclModel::fastest(const std::array<CollectiveTime, 3>& of_protocols) const {
  CollectiveTime best = of_protocols[index(Protocol::kSimple)];
  for (const Protocol protocol : {Protocol::kLl, Protocol::kLl128})
    if (usable(protocol) && of_protocols[index(protocol)].seconds() < best.seconds()) best = of_protocols[index(protocol)];
  return best;
}

// LL128 needs stores of 128 bytes to stay whole, which PCIe does not promise.
bool NcclModel::usable(Protocol protocol) const { return protocol != Protocol::kLl128 || rates_.links || rates_.in_unit <= 1; }

double NcclModel::inside_step(Protocol protocol, bool tree) const {
  const Latencies& latencies = tree ? kTree : kRing;
  const double own = cluster_.device.link_latency, known = (rates_.links ? latencies.link : latencies.pcie)[index(protocol)] * kUs;
  const double overhead = rates_.units == 1 ? 0 : protocol == Protocol::kSimple ? 3 * kNetworkOverhead : kNetworkOverhead;
  return std::max(own > 0 ? own : known, tree ? 0 : overhead);
}

// `across_leaves`: of the steps between units, the share that crosses the spines.
double NcclModel::network_step(Protocol protocol, bool tree, double across_leaves) const {
  const Network& network = cluster_.network;
  const double known = (tree ? kTree : kRing).network[index(protocol)] * kUs;
  const double far = group_.leaves > 1 ? (network.latency_spine - network.latency_leaf) * std::min(1.0, across_leaves) : 0;
  return std::max(known + network.latency_leaf - kModelLeaf + far, 0.0);
}

double NcclModel::ring_rate(Protocol protocol, double rate) const {
  if (protocol == Protocol::kSimple) return rate;
  if (protocol == Protocol::kLl128) return rate * kLl128Share;
  return std::min(ll_limits(cluster_.device.generation)[static_cast<size_t>(std::min(rates_.units, 3) - 1)], rate * kLlShare);
}

double NcclModel::tree_rate(Protocol protocol, double rate) const {
  rate *= kTreeShare;
  if (protocol == Protocol::kSimple) return rate;
  if (protocol == Protocol::kLl128) return rate * (rates_.units == 1 ? kTreeLl128InNode : kTreeLl128Share);
  return std::min(ll_limits(cluster_.device.generation)[static_cast<size_t>(std::min(rates_.units, 3) - 1)], rate * kTreeLlShare);
}

CollectiveTime NcclModel::ring(double bytes, int passes) const {
  const double hops = passes * (group_.ranks - 1.0), between = passes * (rates_.units - 1.0), chunk = bytes / group_.ranks;
  const double copy = cluster_.device.memory_bandwidth > 0 ? chunk / (kCopyShare * cluster_.device.memory_bandwidth) : 0;
  std::array<CollectiveTime, 3> times;
  for (const Protocol protocol : kProtocols) {
    double latency = kRing.base[index(protocol)] * kUs + (hops - between) * inside_step(protocol, false);
    latency += between * network_step(protocol, false, static_cast<double>(group_.leaves) / rates_.units);
    // NCCL's plateau of long all_reduce rings over nodes.
    if (protocol == Protocol::kSimple && passes == 2 && rates_.units > 1) latency *= cluster_.device.generation == Generation::kVolta ? 1.9 : 1.4;
    times[index(protocol)] = {.latency = start_ + latency, .transfer = hops * chunk / ring_rate(protocol, rate_) + copy, .algorithm = "ring"};
  }
  return fastest(times);
}

CollectiveTime NcclModel::chain(double bytes) const {
  const double hops = group_.ranks - 1.0, between = rates_.units - 1.0;
  std::array<CollectiveTime, 3> times;
  for (const Protocol protocol : kProtocols) {
    const double latency = kRing.base[index(protocol)] * kUs + (hops - between) * inside_step(protocol, false) +
                           between * network_step(protocol, false, static_cast<double>(group_.leaves) / rates_.units);
    times[index(protocol)] = {.latency = start_ + latency, .transfer = bytes / ring_rate(protocol, rate_), .algorithm = "ring"};
  }
  return fastest(times);
}

// Two binary trees over the nodes, a chain inside each: a node sends a buffer up and one down.
CollectiveTime NcclModel::tree(double bytes) const {
  const double levels = std::floor(std::log2(rates_.units));
  const double across = rates_.units > 1 ? std::log2(group_.leaves) / std::log2(rates_.units) : 0;
  std::array<CollectiveTime, 3> times;
  for (const Protocol protocol : kProtocols) {
    const double depth = (rates_.in_unit - 1) * inside_step(protocol, true) + levels * network_step(protocol, true, across);
    const double latency = kTree.base[index(protocol)] * kUs + 2 * depth, rate = tree_rate(protocol, rate_) * tree_correction(bytes);
    times[index(protocol)] = {.latency = start_ + latency, .transfer = 2 * bytes / rate, .algorithm = "tree"};
  }
  return fastest(times);
}

bool NcclModel::has_nvls() const {
  const DeviceKind& device = cluster_.device;
  const bool switches = device.link > 0 && device.link_to_one >= device.link && rates_.links;
  return switches && (device.generation == Generation::kHopper || device.generation == Generation::kBlackwell) && group_.largest_domain > 2 &&
         group_.domains == rates_.units;
}

CollectiveTime NcclModel::nvls_all_reduce(double bytes) const {
  const double wire = rates_.inside * (cluster_.device.generation == Generation::kHopper ? kNvlsHopper : kNvlsBlackwell);
  const double inside = wire / (1 + 1 / rates_.in_unit);
  if (rates_.units == 1) return {.latency = start_ + kNvlsStep, .transfer = bytes / inside, .algorithm = "nvls"};
  // Of two domains each sends its sum once; in a tree over more a domain sends up and down.
  const double between = rates_.units == 2 ? rates_.network : rates_.network / 2;
  const double levels = std::floor(std::log2(rates_.units));
  return {.latency = start_ + kNvlsStep + 2 * levels * kNvlsTreeStep, .transfer = bytes / std::min(inside, between), .algorithm = "nvls tree"};
}

CollectiveTime NcclModel::nvls_gather(double bytes) const {
  const double wire = rates_.inside * (cluster_.device.generation == Generation::kHopper ? kNvlsHopper : kNvlsBlackwell);
  return {.latency = start_ + kNvlsStep, .transfer = bytes / wire, .algorithm = "nvls"};
}

CollectiveTime NcclModel::all_to_all(double bytes) const {
  const double ranks = group_.ranks, near = rates_.in_unit - 1, far = ranks - rates_.in_unit;
  CollectiveTime time{.latency = start_ + kSimpleBase + near * inside_step(Protocol::kSimple, false), .algorithm = "direct"};
  if (near > 0) time.transfer = bytes * near / ranks / (rates_.inside * kPairsInside);
  if (far <= 0) return time;
  const double leaves = group_.leaves;
  time.latency += network_step(Protocol::kSimple, false, 1 - 1 / leaves) + far * kNetworkOverhead;
  time.transfer = std::max(time.transfer, bytes * far / ranks * rates_.in_unit / (rates_.network * kPairsNetwork));
  if (rates_.to_leaves > 0) time.transfer = std::max(time.transfer, bytes * (1 - 1 / leaves) / (rates_.to_leaves * kPairsNetwork));
  return time;
}

CollectiveTime NcclModel::rooted(double bytes) const {
  const double ranks = group_.ranks, near = rates_.in_unit - 1, far = ranks - rates_.in_unit;
  CollectiveTime time{.latency = start_ + kSimpleBase + near * inside_step(Protocol::kSimple, false), .algorithm = "direct"};
  if (near > 0) time.transfer = bytes * near / ranks / rates_.inside;
  if (far <= 0) return time;
  time.latency += network_step(Protocol::kSimple, false, 1) + far * kNetworkOverhead;
  time.transfer = std::max(time.transfer, bytes * far / ranks / rates_.one_rank);
  return time;
}

CollectiveTime NcclModel::step(double bytes) const {
  const bool leaves_unit = rates_.units > 1;
  double rate = leaves_unit ? rates_.one_rank : rates_.pair;
  if (leaves_unit && rates_.in_unit > 1) rate = std::min(rate, rates_.pair);
  std::array<CollectiveTime, 3> times;
  for (const Protocol protocol : kProtocols) {
    const double latency = kRing.base[index(protocol)] * kUs + (leaves_unit ? network_step(protocol, false, 1) : inside_step(protocol, false));
    times[index(protocol)] = {.latency = start_ + latency, .transfer = bytes / ring_rate(protocol, rate), .algorithm = "direct"};
  }
  return fastest(times);
}

}  // namespace lockstep::plan
