// Starts the ranks of this host as copies of this program and watches them until all have ended.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::launch {

struct LocalLaunch {
  int ranks = 1;
  std::vector<std::string> arguments{};  // each rank gets them, then its identity_flags()
  std::filesystem::path program = "/proc/self/exe";
  std::filesystem::path log_dir{};        // what ranks above 0 print is kept here as rank-NNNN.out once it exists
  std::chrono::milliseconds grace{5000};  // from the first failure to SIGTERM, and from there to SIGKILL
  int error_fd = 2;                       // where a failure is reported
};

// Blocks until every rank has ended. Returns 0 where all did well, else the exit code of the rank that failed first,
// and says which it was. A failure of code kPeerLost is blamed only where no rank has another one, since it is the echo
// of somebody else's; a rank ended by a signal counts as kPeerLost and as a cause: "rank 2 was ended by signal 9
// (Killed)". Rank 0 keeps the terminal; of the others the last lines of the one to blame are shown, with its number.
//
// SIGINT and SIGTERM are passed on to every rank, which then may take its time to save; a second one ends them at once.
// Where this process dies, the kernel ends the ranks. To be called from a process with one thread: signals are blocked
// while it runs. EnvironmentError LS3111 where a rank cannot be started.
int launch_local(const LocalLaunch& launch);

}  // namespace lockstep::launch
