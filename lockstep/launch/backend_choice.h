// Which backend carries the messages of this job's ranks.
#pragma once

#include <optional>
#include <string>

#include "lockstep/config/run_config.h"
#include "lockstep/launch/identity.h"

namespace lockstep::launch {

struct BackendChoice {
  config::Backend backend = config::Backend::kSharedMemory;  // never kAuto
  std::string why;                                           // "all ranks are on one host"
};

// parallel.backend, or what "auto" means here: nccl where train.device is cuda, shared_memory where all ranks are on
// one host, mpi on several hosts under mpirun. One rank needs none and gets shared_memory. A pure function: whether the
// backend is built is its own to say. `gpus` of this host, where somebody knows. EnvironmentError LS3121, with the way out,
// where no backend can join these ranks, or the one that was asked for cannot; nccl cannot join ranks that share a GPU.
BackendChoice choose_backend(const Identity& identity, const config::RunConfig& config, std::optional<int> gpus = {});

}  // namespace lockstep::launch
