// This machine as a cluster: one node, a device for each rank of the CPU. And the file in which a machine is kept with the constants of its
// software, measured or calibrated (plan --calibrate).
#pragma once

#include <string>
#include <string_view>

#include "lockstep/plan/host_speed.h"
#include "lockstep/plan/time/calibrate.h"

namespace lockstep::plan {

struct MachineRanks {
  int ranks = 0;    // devices; 0: as many as cores
  int threads = 0;  // of each; 0: the cores shared out (train.threads)
};

// Each rank has its threads' share of the cores, and an equal share of memory and of its bandwidth, which copies between ranks take too.
// Ranks share cores where there are more threads than cores.
Cluster this_machine(const HostFacts& facts, const HostSpeed& speed, const MachineRanks& ranks);
// Measured now: a fraction of a second.
Cluster this_machine(const MachineRanks& ranks = {});

// `machine`, of which the constants were found with `before`, with other ranks on the same cores: what a rank has of them changes as above.
Machine with_ranks(Machine machine, const MachineRanks& before, const MachineRanks& now, int cores);

// A cluster file (parse_cluster_toml) with the table [stack] behind it (stack_toml.h).
std::string machine_toml(const Machine& machine);
// Without [stack] the constants that are usual for the device. ConfigError as parse_cluster_toml and parse_stack_toml.
Machine parse_machine_toml(std::string_view text, std::string_view origin);

}  // namespace lockstep::plan
