#include "lockstep/plan/this_machine.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/stack_toml.h"

namespace lockstep::plan {
namespace {

// How a device's cores and memory are shared out.
struct Share {
  int ranks = 1;
  double cores = 1;  // of a rank
};
Share share_of(const MachineRanks& ranks, int cores) {
  LOCKSTEP_CHECK(cores >= 1 && ranks.ranks >= 0 && ranks.threads >= 0);
  Share share{.ranks = ranks.ranks > 0 ? ranks.ranks : cores};
  const double equal = static_cast<double>(cores) / share.ranks;
  share.cores = ranks.threads > 0 ? std::min(static_cast<double>(ranks.threads), equal) : equal;
  return share;
}

}  // namespace

Cluster this_machine(const HostFacts& facts, const HostSpeed& speed, const MachineRanks& ranks) {
  const Share share = share_of(ranks, facts.cores);
  const double flops = speed.flops * share.cores, bytes = speed.memory / share.ranks;
  Cluster cluster{.name = "this machine",
                  .device = {.name = cat(number_text(share.cores), share.cores == 1 ? " core of " : " cores of ", facts.processor),
                             .generation = Generation::kCpu,
                             .memory = facts.memory / share.ranks,
                             .memory_bandwidth = bytes,
                             .flops_fp32 = flops,
                             .flops_bf16 = flops,
                             .link = bytes,
                             .link_to_one = bytes,
                             .link_efficiency = 1,
                             .link_latency = speed.latency,
                             .pcie = bytes,
                             .origin = "measured on this machine"},
                  .nodes = 1,
                  .devices_per_node = share.ranks,
                  .domain = share.ranks,
                  .nics_per_node = 1,
                  .host_memory = facts.memory,
                  .origin = "measured on this machine"};
  return cluster;
}

Cluster this_machine(const MachineRanks& ranks) {
  const HostFacts facts = host_facts();
  return this_machine(facts, measure_host(facts.cores), ranks);
}

Machine with_ranks(Machine machine, const MachineRanks& before, const MachineRanks& now, int cores) {
  const Share was = share_of(before, cores), is = share_of(now, cores);
  const double computes = is.cores / was.cores, memory = static_cast<double>(was.ranks) / is.ranks;
  Cluster& cluster = machine.cluster;
  DeviceKind& device = cluster.device;
  LOCKSTEP_CHECK(cluster.nodes == 1 && cluster.devices_per_node == was.ranks, "a machine of ", cluster.devices_per_node, " ranks");
  for (double* rate : {&device.flops_fp32, &device.flops_bf16, &device.flops_fp8}) *rate *= computes;
  for (double* share : {&device.memory, &device.memory_bandwidth, &device.link, &device.link_to_one, &device.pcie}) *share *= memory;
  cluster.devices_per_node = cluster.domain = is.ranks;
  return machine;
}

std::string machine_toml(const Machine& machine) { return cat(cluster_toml(machine.cluster), "\n", stack_toml(machine.stack)); }

Machine parse_machine_toml(std::string_view text, std::string_view origin) {
  Machine machine{.cluster = parse_cluster_toml(without_stack(text), origin)};
  machine.stack = stack_of(machine.cluster.device, usual_kernels(machine.cluster.device));
  if (has_stack(text)) machine.stack = parse_stack_toml(text, origin, machine.stack);
  return machine;
}

}  // namespace lockstep::plan
