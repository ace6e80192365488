#include "lockstep/plan/predicted_step.h"

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {

StepEstimate predicted_step(const HostMachine& machine, const program::Layout& layout, config::Device device, int threads) {
  const DeviceKind& kind = machine.machine.cluster.device;
  const bool cpus = kind.generation == Generation::kCpu, trains_on_cpus = device == config::Device::kCpu;
  if (cpus != trains_on_cpus)
    throw ConfigError({.code = "LS1150",
                       .what = cat("the machine file is of ", kind.name, ", and train.device is ", trains_on_cpus ? "cpu" : "cuda"),
                       .way_out = "leave --machine out, or name the file of a machine that it trains on"});
  const int ranks = layout.mesh.world_size();
  const HostMachine now = with_ranks(machine, {.ranks = ranks, .threads = threads});
  if (ranks > now.machine.cluster.devices())
    throw ConfigError({.code = "LS1143",
                       .what = cat("a layout of ", ranks, " ranks on ", now.machine.cluster.devices(), " devices"),
                       .way_out = "name the file of a machine that has as many"});
  return estimate_step(layout, now.machine.cluster, now.machine.stack, {.memory = false, .traffic = false});
}

StepEstimate predicted_step(const std::filesystem::path& machine, const program::Layout& layout, config::Device device, int threads) {
  return predicted_step(parse_machine_toml(read_file(machine), machine.string()), layout, device, threads);
}

}  // namespace lockstep::plan
