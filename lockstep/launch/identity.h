// Who am I: the place of this process in the job.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {

struct Identity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  int region_fd = -1;               // inherited descriptor of the ranks' SharedRegion; -1: none
  std::string source = "one rank";  // who said so: "lockstep -n 2", "Slurm: SLURM_PROCID=3 SLURM_NTASKS=8", "one rank"
  std::string master_address{};     // where rank 0 is to be found; empty: not told
  int master_port = 0;              // 0: not told
  bool operator==(const Identity&) const = default;
};

// The flags by which launch_local tells a child its identity: {"--rank", "2", "--world-size", "4", "--region-fd", "5"}.
std::vector<std::string> identity_flags(const Identity& identity);

// Takes those flags out of `arguments` and returns what they say; one rank where there are none. ConfigError LS1060 on
// a flag without its value, a value that is no number, or a rank outside the world.
Identity take_identity(std::vector<std::string>& arguments);

using Environment = std::map<std::string, std::string>;

// What the launcher that started this process says in the environment; the first that is found, in this order:
// torchrun, Open MPI, MPICH and its kin, Slurm, Kubeflow PyTorchJob (its ranks are pods), none = one rank. `source` lists
// the variables read. A pure function. ConfigError LS1061, naming the variables, where they contradict each other, are
// no numbers, or tell a rank but not of how many (a bare PMIX_RANK).
Identity detect_identity(const Environment& environment);

// Slurm's list of hosts, in full: "n[01-03,7],gpu" is n01, n02, n03, n7, gpu. ConfigError LS1061 where it is no such list.
std::vector<std::string> expand_node_list(const std::string& list);

}  // namespace lockstep::launch
