#include "apps/lockstep/plan_sources.h"

#include "lockstep/base/file.h"
#include "lockstep/config/check.h"
#include "lockstep/plan/calibrate_run.h"
#include "lockstep/plan/stack_toml.h"
#include "lockstep/plan/this_machine.h"

namespace lockstep::apps {
namespace {

using plan::Machine;
using plan::MachineRanks;

constexpr std::string_view kHere = "here";

Machine usual(plan::Cluster cluster) {
  const plan::Stack stack = plan::stack_of(cluster.device, plan::usual_kernels(cluster.device));
  return {.cluster = std::move(cluster), .stack = stack};
}

Machine machine_of(const std::string& cluster, const MachineRanks& ranks) {
  if (cluster == kHere) return usual(plan::this_machine(ranks));
  if (cluster.ends_with(".toml")) return plan::parse_machine_toml(read_file(cluster), cluster);
  return usual(plan::parse_cluster(cluster));
}

}  // namespace

AskedMachine machine_asked(const CommandLine& command_line, const std::string& cluster, const config::RunConfig& config) {
  const MachineRanks wanted{.ranks = command_line.ranks.value_or(config.parallel.dp > 0 ? config::ranks_wanted(config) : 0),
                            .threads = config.train.threads};
  if (!command_line.has("calibrate")) {
    AskedMachine asked{.machine = machine_of(cluster, wanted)};
    if (const std::string file = command_line.value("stack"); !file.empty())
      asked.machine.stack = plan::parse_stack_toml(read_file(file), file, asked.machine.stack);
    return asked;
  }
  const std::string run = command_line.value("calibrate");
  const plan::TracedRun traced = plan::read_traced_run(run);
  const MachineRanks measured{.ranks = traced.layout.mesh.world_size(), .threads = traced.layout.threads};
  plan::Calibration calibration = plan::calibrate_run(traced, machine_of(cluster, measured), run);
  Machine machine = calibration.machine;
  if (cluster == kHere) {
    const int cores = plan::host_facts().cores;
    const MachineRanks now{.ranks = wanted.ranks > 0 ? wanted.ranks : measured.ranks, .threads = wanted.threads};
    machine = plan::with_ranks(std::move(machine), measured, now, cores);
  }
  return {.machine = std::move(machine), .calibration = std::move(calibration)};
}

}  // namespace lockstep::apps
