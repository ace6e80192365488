#include "lockstep/plan/usual_machine.h"

#include "lockstep/base/text.h"
#include "lockstep/plan/time/step_estimate.h"

namespace lockstep::plan {
namespace {

constexpr int kGpusOfNode = 8;

// Two units of eight fp32 lanes that multiply and add, at 3 GHz; memory as of two channels of DDR4 for four cores.
Cluster cpu_host(int ranks) {
  constexpr double kFlops = 2 * 8 * 2 * 3e9, kMemory = 10e9, kDisk = 1e9;
  return {.name = "a host",
          .device = {.name = "a core",
                     .generation = Generation::kCpu,
                     .memory_bandwidth = kMemory,
                     .flops_fp32 = kFlops,
                     .flops_bf16 = kFlops,
                     .link = kMemory,
                     .link_to_one = kMemory,
                     .link_efficiency = 1,
                     .pcie = kMemory,
                     .origin = "usual"},
          .nodes = 1,
          .devices_per_node = ranks,
          .domain = ranks,
          .nics_per_node = 1,
          .disk_bandwidth = kDisk,
          .origin = "usual"};
}

}  // namespace

Machine usual_machine(config::Device device, int ranks) {
  const int nodes = (ranks + kGpusOfNode - 1) / kGpusOfNode;
  Cluster cluster = device == config::Device::kCuda ? parse_cluster(cat(nodes, " nodes of ", kGpusOfNode, "xh100")) : cpu_host(ranks);
  const Stack stack = stack_of(cluster.device, usual_kernels(cluster.device));
  return {.cluster = std::move(cluster), .stack = stack};
}

double usual_seconds(const program::Layout& layout, config::Device device) {
  const Machine machine = usual_machine(device, layout.mesh.world_size());
  return estimate_step(layout, machine.cluster, machine.stack, {.memory = false, .traffic = false}).seconds;
}

}  // namespace lockstep::plan
