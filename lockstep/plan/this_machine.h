// This machine as a cluster: one node, a device for each rank of the CPU. And the file in which a machine is kept with the constants of its
// software, measured or calibrated (plan --calibrate, train --machine).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/plan/host_speed.h"
#include "lockstep/plan/time/calibrate.h"

namespace lockstep::plan {

struct MachineRanks {
  int ranks = 0;    // devices; 0: as many as cores
  int threads = 0;  // of each; 0: the cores shared out (train.threads)
  bool operator==(const MachineRanks&) const = default;
};

// What ranks of one host share.
struct HostShare {
  int cores = 1;
  double saturating = 1;  // cores that take all of the memory bandwidth, 1 to `cores`
  MachineRanks ranks{};
  bool operator==(const HostShare&) const = default;
};
HostShare host_share(const HostFacts& facts, const HostSpeed& speed, const MachineRanks& ranks);

// Each rank has its threads' share of the cores, an equal share of memory, and of its bandwidth what its cores can take of an equal share; copies
// between ranks take that of one core. Where there are more threads than cores ranks take turns, and one alone is faster (DeviceKind::alone).
Cluster this_machine(const HostFacts& facts, const HostSpeed& speed, const MachineRanks& ranks);

struct HostMachine {
  Machine machine{};
  std::optional<HostShare> host{};  // of CPU ranks on one host: others than these can be asked about
};
// Measured now, a fraction of a second, with the constants that are usual on CPUs.
HostMachine measured_machine(const MachineRanks& ranks = {});

// `of` with other ranks on the same cores: what a rank has of them changes as above. Of a machine that is no host it stays as it is.
HostMachine with_ranks(HostMachine of, const MachineRanks& ranks);

// A cluster file (parse_cluster_toml), behind it the table [stack] (stack_toml.h), and of a host
//   [host]
//   cores = 2
//   saturating = 1.7
//   ranks = 2        # that the file's device is one of
//   threads = 1      # of each; 0: the cores shared out
std::string machine_toml(const HostMachine& machine);
// Without [stack] the constants that are usual for the device. ConfigError LS1153 where [host] is wrong, and as parse_cluster_toml and
// parse_stack_toml.
HostMachine parse_machine_toml(std::string_view text, std::string_view origin);

}  // namespace lockstep::plan
