// What a program moves between device, host and disk in one step: predicted, as the ledger is for links between ranks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/program/effects.h"

namespace lockstep::program {

enum class Route { kHostToDevice, kDeviceToHost, kDiskToHost, kHostToDisk };
std::string route_name(Route route);

// Of an action that moves several units one each.
struct Move {
  std::string_view what{};  // "parameters", "gradients", "optimizer state", "activations"
  Route route = Route::kHostToDevice;
  int64_t bytes = 0;
};

// What each action of a rank moves. Of a part of n elements (of a unit, over the shards), es = 2 in bf16, else 4:
//   FETCH of parameters       es n to the device; from disk, where the unit lies there and was not just updated
//   SHARD_GRAD                4 n to the host, where the optimizer lives there
//   FETCH, EVICT of states    arch::update_bytes from disk; the same back, 2 n more with a bf16 copy
//   EVICT, FETCH of inputs    LayerCost::kept, there and back
// Layout and program outlive it.
class ActionMoves {
 public:
  ActionMoves(const Layout& layout, const Program& program, int rank);
  std::vector<Move> of(const Action& action);

 private:
  std::optional<Move> move(const Touch& touch, bool copies) const;

  const Layout& layout_;
  EffectTable effects_;
  HostPlan plan_;
  std::map<int, UnitSize> sizes_;
  std::vector<arch::LayerCost> costs_;  // where activations move
};

struct MoveTotals {
  int64_t count = 0;
  int64_t bytes = 0;
};
// By what is moved.
using Moves = std::map<std::pair<std::string, Route>, MoveTotals>;
// Of the rank's whole program.
Moves predict_moves(const Layout& layout, const Program& program, int rank);

}  // namespace lockstep::program
