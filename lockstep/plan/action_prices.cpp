#include "lockstep/plan/action_prices.h"

#include <algorithm>

#include "lockstep/program/predict/traffic.h"

namespace lockstep::plan {

using program::Access;
using program::Action;
using program::Layout;
using program::Program;
using program::Resource;
using program::Touch;
using program::Work;

double part_share(const Action& action, const arch::LayerCost& cost) {
  if (action.part < 0) return 1;
  const bool forward = program::work_of(action.kind) == Work::kForward;
  const arch::PartCost& parts = forward ? cost.forward_parts : program::adds_to_weights(action.kind) ? cost.backward_parts : cost.input_parts;
  const double all = parts.flops[0] + parts.flops[1] + parts.flops[2];
  return all > 0 ? parts.flops[static_cast<size_t>(action.part)] / all : 1.0 / program::kParts;
}

Prices::Prices(const Layout& layout, const Program& program, int rank)
    : layout_(layout),
      rank_(rank),
      calls_(layout, program, rank),
      costs_(layer_costs(layout, rank)),
      flat_(layout.flat_layout(rank)),
      effects_(layout, program.buckets, rank),
      moves_(layout, program, rank) {}

const Price& Prices::of(const Action& action) {
  const auto [entry, fresh] = known_.try_emplace(without_microbatch(action));
  Price& price = entry->second;
  if (!fresh) return price;
  if (action.layer >= 0) price.share = part_share(action, costs_.at(static_cast<size_t>(action.layer)));
  add_calls(action, price);
  add_touched(effects_.of(action), price);
  for (const program::Move& move : moves_.of(action)) price.moves.push_back(static_cast<double>(move.bytes));
  return price;
}

void Prices::add_calls(const Action& action, Price& price) {
  if (program::is_transfer(action.kind)) return;
  for (const program::PlannedCall& planned : calls_.of(action)) {
    const program::CallOfRank of_rank = program::call_of_rank(layout_, rank_, planned);
    int64_t most = 0;
    for (int i = 0; i < static_cast<int>(of_rank.call.group.size()); ++i) most = std::max(most, program::predicted_bytes(of_rank.call, i));
    price.calls.push_back(static_cast<double>(most));
  }
}

void Prices::add_touched(const program::Effects& effects, Price& price) const {
  for (const Touch& touch : effects.touches) {
    if (effects.lane == program::Lane::kChannel && touch.how == Access::kConsume) {
      const int maker = touch.what == Resource::kInput ? touch.index - 1 : touch.index;  // or whose output it is the gradient of
      price.handed_over = static_cast<double>(costs_.at(static_cast<size_t>(maker)).output);
    }
    if (touch.what == Resource::kNorm && touch.how == Access::kCreate) price.norm = true;
    if (touch.what != Resource::kStates || effects.lane != program::Lane::kCompute) continue;
    const bool all = touch.index == program::kEvery;
    price.updated = all ? 1 : static_cast<double>(flat_.units[flat_.index_of(touch.index)].part());
    price.parameters = all ? 1 : static_cast<double>(flat_.parts);
  }
}

}  // namespace lockstep::plan
