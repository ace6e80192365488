#include "lockstep/plan/cluster/shard_sends.h"

#include <algorithm>

#include "lockstep/program/matrices.h"
#include "lockstep/program/rank_class.h"

namespace lockstep::plan {

using program::GroupRef;

ShardSends::ShardSends(const program::Layout& layout, int rank, const std::vector<program::RepeatedCalls>& calls) : layout_(layout) {
  bool moves = false;
  for (const program::RepeatedCalls& repeated : calls) {
    if (!program::differs_by_shard(layout, repeated.action)) continue;
    if (program::sums_partial(repeated.action.kind)) partial_times_ = static_cast<double>(repeated.times);
    moves = moves || program::moves_matrices(repeated.action.kind);
  }
  if (partial_times_ > 0) find_partial(rank);
  if (moves) find_matrices(rank, calls);
}

// As program::partial_gradients(layout, rank) of every rank: a parameter lies in a few neighbouring shards of its unit.
void ShardSends::find_partial(int rank) {
  const std::vector<arch::ParamSpec> table = layout_.param_table(rank);
  const auto of_group = [&](arch::ParameterGroup group, int shards) -> Partial& {
    const auto known = std::ranges::find(partial_, group, &Partial::of);
    if (known != partial_.end()) return *known;
    const std::vector<int64_t> none(static_cast<size_t>(shards));
    return partial_.emplace_back(Partial{.of = group, .over_tensor = none, .over_copies = none});
  };
  for (const arch::FlatUnit& unit : layout_.flat_layout(table).units)
    for (const arch::FlatSlot& slot : unit.slots) {
      const arch::ParamSpec& spec = table[static_cast<size_t>(slot.param)];
      if (!spec.partial || slot.numel == 0) continue;
      Partial& partial = of_group(unit.group, unit.shards);
      std::vector<int64_t>& numel = spec.cut == arch::TensorCut::kNone ? partial.over_tensor : partial.over_copies;
      const int64_t begin = slot.offset - unit.begin, end = begin + slot.numel, part = unit.part();
      for (int64_t shard = begin / part; shard * part < end; ++shard)
        numel[static_cast<size_t>(shard)] += std::min(end, (shard + 1) * part) - std::max(begin, shard * part);
    }
  tensor_ = program::group_over(layout_, mesh::Axis::kTp);
  copies_ = program::group_over(layout_, program::same_heads(layout_, program::partial_gradients(table).copies));
}

// One plan says it for all members.
void ShardSends::find_matrices(int rank, const std::vector<program::RepeatedCalls>& calls) {
  const program::MatrixPlan plan(layout_, rank);
  std::map<GroupRef, std::map<std::pair<int, int>, double>> bytes;  // by sender and receiver
  for (const program::RepeatedCalls& repeated : calls) {
    const program::Action& action = repeated.action;
    if (!program::moves_matrices(action.kind)) continue;
    std::map<std::pair<int, int>, double>& of_group = bytes[plan.group(action.unit)];
    const std::vector<program::ScatteredMatrix>& matrices = plan.of(action.unit);
    for (const program::MatrixMessage& message : plan.messages(action.unit, action.kind == program::ActionKind::kGatherUpdate))
      of_group[{message.from, message.to}] +=
          static_cast<double>(repeated.times * matrices[message.matrix].pieces[message.piece].numel * plan.element_size());
  }
  for (const auto& [group, pairs] : bytes) {
    GroupSends& sends = matrices_.emplace_back(GroupSends{.group = group, .axis = program::group_name(layout_, group)});
    for (const auto& [pair, sent] : pairs) sends.add_sends(program::group_size(layout_, group), pair.first, {{.to = pair.second, .bytes = sent}});
  }
}

const GroupSends& ShardSends::partial_sums(const GroupRef& group, int64_t numel) {
  const auto [known, fresh] = partial_sums_.try_emplace({group, numel});
  if (fresh) {
    const program::Summation sum = program::sum_over_ranks(layout_, program::Summed::kPartialGradients);
    known->second.group = group;
    known->second.axis = program::group_name(layout_, group);
    known->second.add({.collective = sum.collective,
                       .algorithm = sum.algorithm,
                       .group = std::vector<int>(static_cast<size_t>(program::group_size(layout_, group))),
                       .numel = numel,
                       .element_size = sum.element_size},
                      partial_times_);
  }
  return known->second;
}

void ShardSends::for_groups_led_by(int rank, const std::function<void(const GroupSends&)>& use) {
  const auto leads = [&](const GroupRef& group) { return program::group_rank(layout_, rank, group) == 0; };
  int64_t over_tensor = 0, over_copies = 0;
  for (const Partial& partial : partial_) {
    const auto shard = static_cast<size_t>(layout_.shard(rank, partial.of));
    over_tensor += partial.over_tensor[shard];
    over_copies += partial.over_copies[shard];
  }
  if (over_tensor > 0 && leads(tensor_)) use(partial_sums(tensor_, over_tensor));
  if (over_copies > 0 && leads(copies_)) use(partial_sums(copies_, over_copies));
  for (const GroupSends& sends : matrices_)
    if (leads(sends.group)) use(sends);
}

}  // namespace lockstep::plan
