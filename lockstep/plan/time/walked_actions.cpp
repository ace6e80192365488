#include "lockstep/plan/time/walked_actions.h"

#include <algorithm>
#include <iterator>

namespace lockstep::plan {

using program::Action;
using program::Effects;
using program::Resource;
using program::Touch;

namespace {

constexpr size_t kResources = static_cast<size_t>(Resource::kDirections) + 1;

// kSent counts both directions of a stage.
size_t places_of(const program::Layout& layout, const program::Program& program) {
  return static_cast<size_t>(std::max({layout.num_units(), 2 * layout.pipeline.stages(), static_cast<int>(program.buckets.size())})) + 1;
}

}  // namespace

WalkedActions::WalkedActions(const program::Layout& layout, const program::Program& program, int coordinate, const std::vector<Action>& list, int rank,
                             const TimeOfAction& time_of)
    : coordinate_(coordinate), time_of_(time_of), places_(places_of(layout, program)), effects_(layout, program.buckets, rank),
      asynchronous_(kResources * places_), known_(std::size(program::kActionKinds) * kVariants * places_) {
  for (const Action& action : list) {
    if (program::computes(action.kind)) continue;
    const Effects& effects = effects_.of(action);
    if (effects.join != program::Join::kAtTouch) continue;
    for (const Touch& touch : effects.touches) {
      const auto first = asynchronous_.begin() + static_cast<std::ptrdiff_t>(index_of(touch.what, std::max(0, touch.index)));
      std::fill_n(first, touch.index == program::kEvery ? places_ : 1, true);
    }
  }
}

size_t WalkedActions::index_of(Resource what, int index) const { return static_cast<size_t>(what) * places_ + static_cast<size_t>(index); }

void WalkedActions::find_waits(WalkedAction& action) const {
  for (const Touch& touch : action.effects->touches)
    if (touch.index == program::kEvery || asynchronous_[index_of(touch.what, touch.index)])
      (program::by_microbatch(touch.what) ? action.waits_for_tensors : action.waits) = true;
}

const WalkedAction& WalkedActions::of(const Action& action) {
  const int place = action.layer >= 0 ? action.layer : action.unit >= 0 ? action.unit : action.bucket >= 0 ? action.bucket : action.stage;
  const size_t variant = program::computes(action.kind) ? static_cast<size_t>(action.part + 1) : static_cast<size_t>(action.moved);
  std::unique_ptr<WalkedAction>& known = known_.at((static_cast<size_t>(action.kind) * kVariants + variant) * places_ + static_cast<size_t>(place + 1));
  if (known) return *known;
  known = std::make_unique<WalkedAction>(WalkedAction{.effects = &effects_.of(action), .time = time_of_(coordinate_, program::without_microbatch(action))});
  find_waits(*known);
  return *known;
}

}  // namespace lockstep::plan
