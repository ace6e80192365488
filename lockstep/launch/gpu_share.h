// Which GPU of its host a rank computes on.
#pragma once

#include "lockstep/launch/identity.h"

namespace lockstep::launch {

// Ranks `first` to `first + ranks - 1`, counted on this host, compute on GPU `gpu`.
struct GpuShare {
  int gpu = 0;
  int first = 0;
  int ranks = 1;
};

// Of this rank, on a host with `gpus` > 0 of them: one for itself while there are enough; else neighbours share one, as many
// on each as can be. Where nobody tells how many ranks are here: by turns, and `ranks` is 1.
GpuShare gpu_share(const Identity& identity, int gpus);

}  // namespace lockstep::launch
