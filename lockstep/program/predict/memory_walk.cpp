#include "lockstep/program/predict/memory_walk.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::program {
namespace {

constexpr int64_t kFp32 = 4;
constexpr int64_t kTokenId = 8;

}  // namespace

MemoryWalk::MemoryWalk(const Layout& layout, const Program& program, int rank)
    : layout_(layout),
      program_(program),
      rank_(rank),
      table_(layout.param_table(rank)),
      costs_(layer_costs(layout, rank)),
      flat_(layout.flat_layout(rank)),
      host_(host_plan(layout, rank)) {
  for (const arch::FlatUnit& unit : flat_.units) units_[unit.layer] = unit.numel();
  hold_states();
  // Token ids and targets of all microbatches of the step.
  live(MemoryCategory::kActivations) =
      2 * layout.num_microbatches() * layout.micro_batch * layout.seq_len * kTokenId;
}

// What is there from the first action to the last.
void MemoryWalk::hold_states() {
  const int64_t whole = flat_.numel, part = whole / flat_.shards, element = layout_.element_size();
  const bool bf16 = layout_.precision == config::Precision::kBf16;
  const Offload& offload = layout_.offload;
  if (!offload.parameters)
    live(MemoryCategory::kParameters) = (layout_.sharded_parameters() ? part : whole) * element;
  if (!offload.optimizer)
    live(MemoryCategory::kGradients) = (layout_.transient_gradients() ? part : whole) * kFp32;
  const int64_t masters = bf16 ? kFp32 : 0;
  if (!offload.optimizer && layout_.owns_optimizer(rank_)) live(MemoryCategory::kOptimizer) = part * (layout_.optimizer->slot_bytes() + masters);
  if (layout_.pipeline.post_validation)  // to take STEP back
    live(MemoryCategory::kOptimizer) += part * layout_.optimizer->update_bytes();
  if (offload.optimizer) live(MemoryCategory::kHost) = host_.gradients + host_.states;
}

MemoryPoint MemoryWalk::step(const Action& action) {
  MemoryPoint point{.within = live_};
  workspace_ = activations_ = 0;
  apply(action);
  point.after = live_;
  for (size_t i = 0; i < kNumMemoryCategories; ++i) point.within[i] = std::max(point.within[i], live_[i]);
  if (activations_ > 0) point.within[static_cast<size_t>(MemoryCategory::kActivations)] = activations_;
  point.within[static_cast<size_t>(MemoryCategory::kBuffers)] += workspace_;
  return point;
}

void MemoryWalk::apply(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action);
    case ActionKind::kRecompute:
      return recompute(action);
    case ActionKind::kBackward:
      return backward(action);
    case ActionKind::kBackwardInput:
      return backward_input(action);
    case ActionKind::kBackwardWeight:
      return backward_weight(action);
    case ActionKind::kUnshard:  // after STEP it fills what is there
      if (layout_.sharded_parameters())
        take(MemoryCategory::kParameters, gathered_, action.unit, units_.at(action.unit) * layout_.element_size());
      return;
    case ActionKind::kReshard:
      return drop(MemoryCategory::kParameters, gathered_, action.unit);
    case ActionKind::kFetch:
    case ActionKind::kEvict:
      return move(action);
    case ActionKind::kReduceGrad:
      return stage(action);
    case ActionKind::kReduceShard:
      return drop(MemoryCategory::kBuffers, staged_, action.bucket);
    case ActionKind::kShardGrad:
      return shard_gradients(action);
    case ActionKind::kReducePartial:
      workspace_ = sent_copy(action);
      [[fallthrough]];
    case ActionKind::kNorm:
    case ActionKind::kStep:
      while (!staged_.empty()) drop(MemoryCategory::kBuffers, staged_, staged_.begin()->first);
      return;
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return send(action);
    case ActionKind::kRecvForward:
    case ActionKind::kRecvBackward:
      return receive(action);
    case ActionKind::kLoss:
      return wait_for_sends();
    case ActionKind::kReduceTied:  // in place
    case ActionKind::kPush:
    case ActionKind::kPull:
    case ActionKind::kTokens:
    case ActionKind::kValidate:
      return;
  }
}

void MemoryWalk::take(MemoryCategory category, std::map<int, int64_t>& from, int key, int64_t bytes) {
  LOCKSTEP_CHECK(from.emplace(key, bytes).second, category_name(category), " of ", key, " are there already");
  live(category) += bytes;
}

void MemoryWalk::drop(MemoryCategory category, std::map<int, int64_t>& from, int key) {
  const auto found = from.find(key);
  if (found == from.end()) return;
  live(category) -= found->second;
  from.erase(found);
}

void MemoryWalk::open_gradients(const Action& action) {
  if (!layout_.transient_gradients()) return;
  for (const int unit : units_written(action, table_, layout_.num_layers() - 1))
    if (!open_.contains(unit)) take(MemoryCategory::kGradients, open_, unit, units_.at(unit) * kFp32);
}

void MemoryWalk::move(const Action& action) {
  switch (action.moved) {
    case Moved::kParameters:
      if (layout_.offload.parameters)  // else it fills what is there
        move_unit(action, MemoryCategory::kParameters, fetched_, layout_.element_size());
      return;
    case Moved::kOptimizer:
      return move_unit(action, MemoryCategory::kHost, from_disk_, offloaded_state_bytes(layout_));
    case Moved::kActivation:
      return move_activation(action);
  }
}

void MemoryWalk::move_unit(const Action& action, MemoryCategory category, std::map<int, int64_t>& from, int64_t element) {
  if (action.kind == ActionKind::kFetch)
    take(category, from, action.unit, units_.at(action.unit) / flat_.shards * element);
  else
    drop(category, from, action.unit);
}

// What leaves is on both sides until the next of its kind moves, and what comes until it is used.
void MemoryWalk::move_activation(const Action& action) {
  const Key key{action.layer, action.microbatch};
  live(MemoryCategory::kActivations) -= std::exchange(leaving_, 0);
  if (action.kind == ActionKind::kFetch) {
    live(MemoryCategory::kActivations) += on_host_.at(key);
  } else {
    leaving_ = on_host_[key] = kept_.at(key);
    live(MemoryCategory::kHost) += leaving_;
  }
}

// With reduce_precision bf16 the gradients of the bucket once as they go out and once as they come in.
void MemoryWalk::stage(const Action& action) {
  if (layout_.reduce_precision != config::Precision::kBf16 || layout_.shards() == 1) return;
  constexpr int64_t kOutAndIn = 2 * 2;
  int64_t bytes = 0;
  for (const int unit : program_.buckets.at(static_cast<size_t>(action.bucket)).layers) bytes += kOutAndIn * units_.at(unit);
  take(MemoryCategory::kBuffers, staged_, action.bucket, bytes);
}

void MemoryWalk::shard_gradients(const Action& action) {
  drop(MemoryCategory::kBuffers, staged_, action.bucket);
  for (const int unit : program_.buckets.at(static_cast<size_t>(action.bucket)).layers)
    drop(MemoryCategory::kGradients, open_, unit);
}

// Gradients that lie scattered travel together, in a copy.
int64_t MemoryWalk::sent_copy(const Action& action) const {
  int64_t largest = 0;
  for (const PlannedCall& planned : planned_calls(layout_, program_, rank_, action))
    largest = std::max(largest, payload(planned.call));
  return largest;
}

void MemoryWalk::check_end() const {
  LOCKSTEP_CHECK(kept_.empty(), "bytes kept for a backward that never came");
  LOCKSTEP_CHECK(flowing_.empty() && sent_.empty(), "activations that nobody took, or sends that nobody waited for");
  LOCKSTEP_CHECK(gathered_.empty() && fetched_.empty() && from_disk_.empty(), "parameters gathered and never dropped");
  LOCKSTEP_CHECK(open_.empty() && staged_.empty(), "gradients that were never reduced");
}

}  // namespace lockstep::program
