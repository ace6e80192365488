#include "lockstep/launch/gpu_share.h"

#include "lockstep/base/check.h"

namespace lockstep::launch {

GpuShare gpu_share(const Identity& identity, int gpus) {
  LOCKSTEP_CHECK(gpus > 0, "GPUs: ", gpus);
  const int here = identity.local_size, own = identity.local_rank;
  if (here <= gpus) return {.gpu = own % gpus, .first = own, .ranks = 1};
  const int gpu = own * gpus / here;
  const auto first_of = [&](int index) { return (index * here + gpus - 1) / gpus; };
  return {.gpu = gpu, .first = first_of(gpu), .ranks = first_of(gpu + 1) - first_of(gpu)};
}

}  // namespace lockstep::launch
