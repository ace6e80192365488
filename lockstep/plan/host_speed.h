// How fast the cores of this host are, measured in a fraction of a second: what a CPU rank could do, which Stack's shares are of.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::plan {

struct HostSpeed {
  double flops = 0;    // of one core, FLOP/s: fused multiply-adds in fp32 out of registers, on all cores at once
  double memory = 0;   // of all cores together, bytes/s read and written by a copy of arrays beyond the caches
  double memory_of_core = 0;  // the same of one while the others do nothing; 0: nobody measured it
  double latency = 0;  // seconds until one core sees what another has written
};

// Takes about six times `seconds`. The best of many short times, so that other work on the machine
// lowers the numbers little.
HostSpeed measure_host(int cores, double seconds = 0.05);

struct HostFacts {
  std::string processor{};  // "model name" of /proc/cpuinfo; "CPU" where nobody says
  int cores = 1;            // that this process may use
  double memory = 0;        // bytes that are left (launch/host_memory.h); 0 where nobody says
};
// A function of the files under `root` but for the cores; "/" is this machine.
HostFacts host_facts(const std::filesystem::path& root = "/");

}  // namespace lockstep::plan
