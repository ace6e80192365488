#include "lockstep/program/predict/moves.h"

#include <array>

namespace lockstep::program {

std::string route_name(Route route) {
  constexpr std::array kNames = {"host to device", "device to host", "disk to host", "host to disk"};
  return kNames.at(static_cast<size_t>(route));
}

ActionMoves::ActionMoves(const Layout& layout, const Program& program, int rank)
    : layout_(layout), effects_(layout, program.buckets, rank), plan_(host_plan(layout, rank)), sizes_(unit_sizes(layout, layout.param_table(rank))) {
  if (layout.offload.activations) costs_ = layer_costs(layout, rank);
}

std::vector<Move> ActionMoves::of(const Action& action) {
  const Effects& effects = effects_.of(action);
  std::vector<Move> moves;
  for (const Touch& touch : effects.touches)
    if (const std::optional<Move> one = move(touch, effects.lane == Lane::kCopies)) moves.push_back(*one);
  return moves;
}

std::optional<Move> ActionMoves::move(const Touch& touch, bool copies) const {
  if (touch.what == Resource::kGradients && touch.how == Access::kUpdate && touch.from == kOpen && layout_.offload.optimizer)
    return Move{"gradients", Route::kDeviceToHost, 4 * sizes_.at(touch.index).part};
  if (!copies) return std::nullopt;  // eviction of what nothing changed drops it
  const bool fetch = touch.from == kAway;
  switch (touch.what) {
    case Resource::kParameters:
      return Move{"parameters", layout_.offload.parameters && plan_.on_disk(touch.index) ? Route::kDiskToHost : Route::kHostToDevice,
                  layout_.element_size(layout_.group_of(touch.index)) * sizes_.at(touch.index).part};
    case Resource::kStates:
      return Move{"optimizer state", fetch ? Route::kDiskToHost : Route::kHostToDisk,
                  fetch ? sizes_.at(touch.index).updated : sizes_.at(touch.index).offloaded};
    case Resource::kSaved:
      return Move{"activations", fetch ? Route::kHostToDevice : Route::kDeviceToHost, costs_.at(static_cast<size_t>(touch.index)).kept};
    default:
      return std::nullopt;
  }
}

Moves predict_moves(const Layout& layout, const Program& program, int rank) {
  ActionMoves moves(layout, program, rank);
  Moves totals;
  for (const Action& action : program.list(rank)) {
    if (computes(action.kind)) continue;
    for (const Move& move : moves.of(action)) {
      MoveTotals& sum = totals[{std::string(move.what), move.route}];
      sum.count += 1;
      sum.bytes += move.bytes;
    }
  }
  return totals;
}

}  // namespace lockstep::program
