#include "lockstep/program/predict/moves.h"

#include "lockstep/arch/slot_layout.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::program {

std::string route_name(Route route) {
  switch (route) {
    case Route::kHostToDevice:
      return "host to device";
    case Route::kDeviceToHost:
      return "device to host";
    case Route::kDiskToHost:
      return "disk to host";
    case Route::kHostToDisk:
      return "host to disk";
  }
  return "";
}

ActionMoves::ActionMoves(const Layout& layout, const Program& program, int rank)
    : layout_(layout), effects_(layout, program.buckets, rank), plan_(host_plan(layout, rank)), costs_(layer_costs(layout, rank)) {
  const std::vector<arch::ParamSpec> table = layout.param_table(rank);
  const arch::FlatLayout flat = arch::flat_layout(table, layout.shards());
  for (const arch::FlatUnit& unit : flat.units) {
    parts_[unit.layer] = unit.numel() / layout.shards();
    updated_[unit.layer] = arch::update_bytes(table, flat, unit);
    states_[unit.layer] = offloaded_state_bytes(layout, table, flat, unit);
  }
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
    return Move{"gradients", Route::kDeviceToHost, 4 * parts_.at(touch.index)};
  if (!copies) return std::nullopt;  // eviction of what nothing changed drops it
  const bool fetch = touch.from == kAway;
  switch (touch.what) {
    case Resource::kParameters:
      return Move{"parameters", layout_.offload.parameters && plan_.on_disk(touch.index) ? Route::kDiskToHost : Route::kHostToDevice,
                  layout_.element_size() * parts_.at(touch.index)};
    case Resource::kStates:
      return Move{"optimizer state", fetch ? Route::kDiskToHost : Route::kHostToDisk,
                  (fetch ? updated_ : states_).at(touch.index)};
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
