// What a program moves between device, host and disk in one step: predicted, as the ledger is for links between ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "lockstep/program/program.h"

namespace lockstep::program {

enum class Route { kHostToDevice, kDeviceToHost, kDiskToHost, kHostToDisk };
std::string route_name(Route route);

struct MoveTotals {
  int64_t count = 0;
  int64_t bytes = 0;
  bool operator==(const MoveTotals&) const = default;
};
// By what is moved: "parameters", "gradients", "optimizer state", "activations".
using Moves = std::map<std::pair<std::string, Route>, MoveTotals>;

// Of a part of n elements (of a unit, over the shards), es = 2 in bf16, else 4:
//   FETCH of parameters       es n to the device; from disk, where the unit lies there and was not just updated
//   SHARD_GRAD                4 n to the host, where the optimizer lives there
//   FETCH, EVICT of states    arch::OptimizerSpec::update_bytes x n from disk; the same back, 2 n more with a bf16 copy
//   EVICT, FETCH of inputs    LayerCost::kept, there and back
Moves predict_moves(const Layout& layout, const Program& program, int rank);

}  // namespace lockstep::program
