// Replicas that have drifted apart end the run before anything of them is saved.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/config/run_config.h"
#include "lockstep/engine/replicas.h"

namespace lockstep::train {

using ReplicaError = ErrorOf<ExitCode::kMismatch>;

// Whether they are compared behind step `step`, counted from 1 (train.check_replicas_every), whether it is saved or not.
bool replicas_due(const config::RunConfig& config, int64_t step);

struct ReplicaCheck {
  int64_t step = 0;
  std::vector<std::pair<std::string, int64_t>> counters;  // "samples consumed" and so on: the same on all ranks
  bool with_disk = true;                                  // as engine::ReplicaOptions
};

// Collective over the world, with nothing pending; a world of one has nothing to compare. ReplicaError LS5002 on every rank,
// in the same words, naming tensors and ranks (engine::replica_differences), and counters.
void check_replicas(engine::Executor& executor, engine::Groups& groups, const ReplicaCheck& check);

}  // namespace lockstep::train
