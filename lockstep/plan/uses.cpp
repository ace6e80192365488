#include "lockstep/plan/uses.h"

#include "lockstep/program/effects.h"

namespace lockstep::plan {

using program::Action;
using program::ActionKind;
using program::Moved;

bool waits_for_result(ActionKind kind, const program::Layout& layout) {
  if (kind == ActionKind::kLoss || kind == ActionKind::kNorm) return !layout.pipeline.post_validation;
  return kind == ActionKind::kReducePartial;
}

void Uses::start(const ActionRef& ref, const Action& action) {
  switch (action.kind) {
    case ActionKind::kRecvForward:
    case ActionKind::kRecvBackward:
      arrivals_[{action.kind == ActionKind::kRecvForward, action.stage, action.microbatch}] = ref;
      break;
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      sends_.push_back(ref);
      break;
    case ActionKind::kReduceGrad:
    case ActionKind::kReduceShard:
    case ActionKind::kPush:
      buckets_[action.bucket] = ref;
      reductions_.push_back(ref);
      break;
    case ActionKind::kReduceTied:
      reductions_.push_back(ref);
      break;
    case ActionKind::kTokens:
      tokens_ = {ref};
      break;
    case ActionKind::kLoss:
    case ActionKind::kNorm:
      if (layout_->pipeline.post_validation) to_validate_.push_back(ref);
      break;
    case ActionKind::kUnshard:
      gathered_[action.unit] = ref;
      break;
    case ActionKind::kFetch:
      if (action.moved == Moved::kParameters) fetched_[action.unit] = ref;
      if (action.moved == Moved::kOptimizer) states_[action.unit] = ref;
      if (action.moved == Moved::kActivation) inputs_[{action.layer, action.microbatch}] = ref;
      break;
    default:
      break;
  }
}

std::vector<ActionRef> Uses::of(const Action& action) {
  std::vector<ActionRef> used;
  const auto add = [&](const auto& started, const auto& key) {
    if (const auto found = started.find(key); found != started.end()) used.push_back(found->second);
  };
  switch (action.kind) {
    case ActionKind::kLoss:
      return sends_;
    case ActionKind::kReduceTied:
    case ActionKind::kReducePartial:
      return reductions_;
    case ActionKind::kNorm:
      used = reductions_;
      used.insert(used.end(), tokens_.begin(), tokens_.end());
      return used;
    case ActionKind::kValidate:
      return to_validate_;
    case ActionKind::kStep:
      used = reductions_;
      if (action.unit >= 0) add(states_, action.unit);
      return used;
    case ActionKind::kShardGrad:
    case ActionKind::kReduceShard:
      add(buckets_, action.bucket);
      return used;
    case ActionKind::kUnshard:
      add(fetched_, action.unit);
      return used;
    default:
      break;
  }
  if (!program::computes(action.kind) || action.layer < 0) return used;
  if (const auto key = arrival(action)) add(arrivals_, *key);
  if (action.kind == ActionKind::kRecompute) add(inputs_, std::pair(action.layer, action.microbatch));
  if (gathered_.empty() && fetched_.empty()) return used;
  for (const int unit : units(action)) {
    add(gathered_, unit);
    add(fetched_, unit);
  }
  return used;
}

void Uses::used(const Action& action) {
  if (action.kind == ActionKind::kLoss) sends_.clear();
  if (action.kind == ActionKind::kReducePartial || action.kind == ActionKind::kNorm) reductions_.clear();
  if (action.kind == ActionKind::kValidate) to_validate_.clear();
  if (action.kind == ActionKind::kReshard) gathered_.erase(action.unit);
  if (!program::computes(action.kind) || action.layer < 0) return;
  if (const auto key = arrival(action)) arrivals_.erase(*key);
}

// What the first layer of a stage to run takes from another rank.
std::optional<Uses::Arrival> Uses::arrival(const Action& action) const {
  const int stage = layout_->pipeline.stage_of(action.layer);
  const auto [begin, end] = layout_->stage_layers(stage);
  if (action.kind == ActionKind::kForward && action.layer == begin) return Arrival{true, stage, action.microbatch};
  const bool input = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  if (input && action.layer == end - 1) return Arrival{false, stage, action.microbatch};
  return std::nullopt;
}

const std::vector<int>& Uses::units(const Action& action) {
  const auto [entry, fresh] = units_.try_emplace({action.kind, action.layer});
  if (fresh) {
    if (!table_) table_ = layout_->param_table(rank_);
    entry->second = program::units_read(action, *table_);
  }
  return entry->second;
}

}  // namespace lockstep::plan
