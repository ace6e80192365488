#include "apps/lockstep/plan_sources.h"

#include "lockstep/base/file.h"
#include "lockstep/config/check.h"
#include "lockstep/plan/calibrate_run.h"
#include "lockstep/plan/stack_toml.h"
#include "lockstep/plan/this_machine.h"

namespace lockstep::apps {
namespace {

using plan::HostMachine;
using plan::MachineRanks;

constexpr std::string_view kHere = "here";

// Of a host so many ranks; none: as many as it is described with.
HostMachine machine_of(const std::string& cluster, const MachineRanks& ranks) {
  if (cluster == kHere) return plan::measured_machine(ranks);
  if (cluster.ends_with(".toml")) {
    HostMachine read = plan::parse_machine_toml(read_file(cluster), cluster);
    return ranks.ranks > 0 ? plan::with_ranks(std::move(read), ranks) : read;
  }
  HostMachine usual{.machine = {.cluster = plan::parse_cluster(cluster)}, .host = std::nullopt};
  const plan::DeviceKind& device = usual.machine.cluster.device;
  usual.machine.stack = plan::stack_of(device, plan::usual_kernels(device));
  return usual;
}

std::vector<plan::NamedRun> traced_runs(const CommandLine& command_line) {
  std::vector<plan::NamedRun> runs;
  for (const std::string& run : command_line.values("calibrate")) runs.push_back({.name = run, .run = plan::read_traced_run(run)});
  return runs;
}

// What a run has on this machine where nobody says another number of ranks.
MachineRanks ranks_for(const MachineRanks& wanted, const std::vector<plan::NamedRun>& runs) {
  if (wanted.ranks > 0 || runs.empty()) return wanted;
  return runs.front().run.ranks;
}

}  // namespace

AskedMachine machine_asked(const CommandLine& command_line, const std::string& cluster, const config::RunConfig& config) {
  const std::vector<plan::NamedRun> runs = traced_runs(command_line);
  const MachineRanks wanted{.ranks = command_line.ranks.value_or(config.parallel.dp > 0 ? config::ranks_wanted(config) : 0),
                            .threads = config.train.threads};
  HostMachine machine = machine_of(cluster, ranks_for(wanted, runs));
  if (const std::string file = command_line.value("stack"); !file.empty())
    machine.machine.stack = plan::parse_stack_toml(read_file(file), file, machine.machine.stack);
  if (runs.empty()) return {.machine = std::move(machine.machine), .host = machine.host, .calibration = {}};
  plan::HostCalibration found = plan::calibrate_runs(runs, machine);
  return {.machine = std::move(found.machine.machine), .host = machine.host, .calibration = std::move(found.calibration)};
}

}  // namespace lockstep::apps
