// Who am I: the place of this process in the job.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {

enum class Launcher {
  kNone,      // this process alone
  kLockstep,  // launch_local of this host
  kFlags,     // --rank and --world-size, written by whoever started the ranks
  kTorchrun,
  kOpenMpi,
  kPmi,    // MPICH and its kin
  kSlurm,  // srun
  kPods,   // Kubernetes: `rank` and `world_size` count hosts, each of which starts its own ranks
};

struct Identity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;               // among the ranks of this host
  int local_size = 1;               // 0: not told
  int region_fd = -1;               // inherited descriptor of this host's SharedRegion; -1: none
  std::string source = "one rank";  // who said so: "lockstep -n 2", "Slurm: SLURM_PROCID=3 SLURM_NTASKS=8", "one rank"
  std::string master_address{};     // where rank 0 is to be found; empty: not told
  int master_port = 0;              // 0: not told
  Launcher launcher = Launcher::kNone;
  std::string job{};         // tells this job from others that run now; empty: not told
  std::string attempt{};     // which start of the job: the launcher's count of restarts; empty: not told
  bool agent_store = false;  // torchrun's agent serves a store at master_address
  std::string token{};       // LOCKSTEP_JOB_TOKEN: a secret of the ranks of this job; empty: none
  bool operator==(const Identity&) const = default;

  bool alone() const { return world_size == 1; }
  bool on_one_host() const { return local_size == world_size; }
  bool started_by_us() const { return launcher == Launcher::kLockstep; }
};

// The flags by which launch_local tells a child its identity: {"--rank", "2", "--world-size", "4", "--region-fd", "5"},
// and where the world has more than this host, --local-rank, --local-size and --rendezvous.
std::vector<std::string> identity_flags(const Identity& identity);

// Takes the flags that tell a rank its place out of `arguments` and returns what they say; one rank where there are
// none: --rank R --world-size N [--local-rank L --local-size M] [--rendezvous HOST:PORT] [--region-fd F]. Without local
// numbers all ranks are on one host. ConfigError LS1060 on a flag without its value, a value that is no number, a rank
// outside the world, or ranks without a place to meet.
Identity take_identity(std::vector<std::string>& arguments);

using Environment = std::map<std::string, std::string>;

// What the launcher that started this process says in the environment; the first that is found, in this order:
// torchrun, Open MPI, MPICH and its kin, Slurm, Kubernetes (its ranks are pods), none = one rank. `source` lists
// the variables read. A pure function. ConfigError LS1061, naming the variables, where they contradict each other, are
// no numbers, or tell a rank but not of how many (a bare PMIX_RANK).
Identity detect_identity(const Environment& environment);

// LOCKSTEP_JOB_TOKEN, or empty.
std::string job_token(const Environment& environment);

// Slurm's list of hosts, in full: "n[01-03,7],gpu" is n01, n02, n03, n7, gpu. ConfigError LS1061 where it is no such
// list.
std::vector<std::string> expand_node_list(const std::string& list);
// Slurm's tasks of each host, in full: "2(x3),1" is 2, 2, 2, 1. ConfigError LS1061 where it is no such list.
std::vector<int> expand_task_counts(const std::string& list);

}  // namespace lockstep::launch
