// Starts the ranks of this host as copies of this program and watches them until all have ended.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/launch/identity.h"

namespace lockstep::launch {

struct LocalLaunch {
  int ranks = 1;
  std::vector<std::string> arguments{};  // each rank gets them, then its identity_flags()
  std::filesystem::path program = "/proc/self/exe";
  std::filesystem::path log_dir{};        // what ranks above 0 print is added to rank-NNNN.out here once it exists
  std::chrono::milliseconds grace{5000};  // from the first failure to SIGTERM, and from there to SIGKILL
  int error_fd = 2;                       // where a failure is reported
  int max_restarts = 0;                   // how often all ranks are started again after one was lost
  Identity first{};  // of the first of them, where there are ranks on other hosts too; else the world is `ranks`
  std::filesystem::path system_root = "/";  // where /proc and /sys are: host_memory.h
};

// Blocks until every rank has ended. Returns 0 where all did well, else the exit code of the rank that failed first,
// and says which it was. A failure of code kPeerLost is blamed only where no rank has another one, since it is the echo
// of somebody else's; a rank ended by a signal counts as kPeerLost and as a cause: "rank 2 was ended by signal 9
// (Killed)". Where it was signal 9 and the kernel has meanwhile ended processes for want of memory, this is said (LS4004)
// and the code is kOutOfMemory. The first keeps the terminal; of the others the last lines of the one to blame are shown, with its number.
// Where a rank was lost, ended by a signal or with kPeerLost, all ranks are started again, `max_restarts` times at most.
//
// SIGINT, SIGTERM, SIGUSR1, SIGHUP and SIGUSR2 are passed on to every rank; SIGINT and SIGHUP not where they were
// ignored. After one of the first four a rank may take its time to save; the next of the four ends all at once. Ranks
// that all return kSaved or kInterrupted did what they were told: this is returned without a word. Where they had no
// time for it: kInterrupted after SIGINT, kTerminated after the others. Ranks begin with SIGUSR2 ignored. Where this
// process dies, the kernel ends the ranks. To be called from a process with one thread: signals are blocked while it
// runs. EnvironmentError LS3111 where a rank cannot be started.
int launch_local(const LocalLaunch& launch);

}  // namespace lockstep::launch
