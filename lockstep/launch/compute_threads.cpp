#include "lockstep/launch/compute_threads.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace lockstep::launch {
namespace {

// `otherwise` where the mask is wider than what is asked for here.
int bound_cores(int otherwise) {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : otherwise;
}

}  // namespace

int compute_threads(int wanted, const Identity& identity) {
  if (wanted > 0) return wanted;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::min(bound_cores(cores), std::max(1, cores / std::max(1, identity.local_size)));
}

}  // namespace lockstep::launch
