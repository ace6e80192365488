// What ranks must hold alike, compared: parameters that the ranks of dp and cp have whole, over them; shards, over the ranks
// with the same shard; over tp what is not cut (norms, biases of row-parallel linears) and key/value heads that several
// ranks have; over a pipeline a tied embedding on two stages; experts over the ranks that have the same ones. Of a
// parameter server what its workers hold too: parameters.
#pragma once

#include <string>
#include <vector>

#include "lockstep/engine/executor.h"

namespace lockstep::engine {

// Collective over the world, between steps, with nothing pending. What differs, in the same words on every rank: which
// tensor, which ranks; empty where replicas are the same to the bit. First one digest per layer and kind of state goes
// over each group; tensors are looked at one by one only where those differ. Padding is not looked at.
// `with_disk`: also what is offloaded to a disk, which is read.
std::vector<std::string> replica_differences(Executor& executor, Groups& groups, bool with_disk = true);

}  // namespace lockstep::engine
