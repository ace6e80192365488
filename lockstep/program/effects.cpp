#include "lockstep/program/effects.h"

#include <algorithm>
#include <set>

namespace lockstep::program {

bool by_microbatch(Resource resource) {
  return resource == Resource::kInput || resource == Resource::kOutputGrad || resource == Resource::kSaved || resource == Resource::kSent;
}

EffectTable::EffectTable(const Layout& layout, std::span<const Bucket> buckets, int rank)
    : layout_(&layout), buckets_(buckets), rank_(rank) {}

const Effects& EffectTable::of(const Action& action) {
  const std::tuple key(action.kind, action.stage, action.layer, action.bucket, action.unit, action.moved);
  const auto [entry, fresh] = known_.try_emplace(key);
  if (fresh) entry->second = make(action);
  return entry->second;
}

void EffectTable::touch_units(std::span<const int> units, Resource what, Access how, Effects& effects) const {
  for (const int unit : units) effects.touches.push_back({what, how, unit});
}

std::span<const int> EffectTable::bucket(const Action& action) const {
  return buckets_[static_cast<size_t>(action.bucket)].layers;
}

// F, RECOMPUTE, B, I and W of a layer.
void EffectTable::compute(const Action& action, Effects& effects) {
  if (table_.empty()) table_ = layout_->param_table(rank_);
  const int layer = action.layer, last = layout_->num_layers() - 1;
  const bool forward = action.kind == ActionKind::kForward;
  const bool input = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  const auto touch = [&](Resource what, Access how, int index) { effects.touches.push_back({what, how, index}); };
  touch_units(units_read(action, table_), Resource::kParameters, Access::kRead, effects);
  if (forward && layer > 0) touch(Resource::kInput, Access::kConsume, layer);
  if (forward && layer < last) touch(Resource::kInput, Access::kCreate, layer + 1);
  if (input && layer < last) touch(Resource::kOutputGrad, Access::kConsume, layer);
  if (input && layer > 0) touch(Resource::kOutputGrad, Access::kCreate, layer - 1);
  if (input && layer == last) touch(Resource::kLosses, Access::kAdd, 0);
  const bool ends = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
  touch(Resource::kSaved, forward ? Access::kCreate : ends ? Access::kConsume : Access::kUpdate, layer);
  touch_units(units_written(action, table_, last), Resource::kGradients, Access::kAdd, effects);
}

Effects EffectTable::make(const Action& action) {
  Effects effects;
  const auto touch = [&](Resource what, Access how, int index) { effects.touches.push_back({what, how, index}); };
  const auto starts = [&](Lane lane) {
    effects.lane = lane;
    effects.join = Join::kAtTouch;
    effects.collective = lane == Lane::kNetwork;
  };
  const auto waits_for_all = [&] {
    effects.join = layout_->pipeline.post_validation ? Join::kAtTouch : Join::kAtOnce;  // VALIDATE joins them
    effects.collective = effects.host_reads = true;
  };
  const bool by_stage = action.layer < 0 && action.stage >= 0;
  const auto [begin, end] = by_stage ? layout_->stage_layers(action.stage) : Layout::Stretch{};
  switch (action.kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kRecompute:
      if (action.layer >= 0) compute(action, effects);
      break;
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward: {
      const bool forward = action.kind == ActionKind::kSendForward;
      starts(Lane::kChannel);
      touch(forward ? Resource::kInput : Resource::kOutputGrad, Access::kConsume, forward ? end : begin - 1);
      touch(Resource::kSent, Access::kCreate, 2 * action.stage + (forward ? 1 : 0));
      break;
    }
    case ActionKind::kRecvForward:
      starts(Lane::kChannel);
      touch(Resource::kInput, Access::kCreate, begin);
      break;
    case ActionKind::kRecvBackward:
      starts(Lane::kChannel);
      touch(Resource::kOutputGrad, Access::kCreate, end - 1);
      break;
    case ActionKind::kUnshard:
      starts(Lane::kNetwork);
      touch(Resource::kParameters, Access::kUpdate, action.unit);
      break;
    case ActionKind::kReshard:
      touch(Resource::kParameters, Access::kDrop, action.unit);
      break;
    case ActionKind::kFetch:
    case ActionKind::kEvict:
      move(action, effects);
      break;
    case ActionKind::kReduceGrad:
    case ActionKind::kReduceShard:
    case ActionKind::kPush:
      starts(Lane::kNetwork);
      touch_units(bucket(action), Resource::kGradients, Access::kUpdate, effects);
      break;
    case ActionKind::kShardGrad:
      touch_units(bucket(action), Resource::kGradients, Access::kUpdate, effects);
      break;
    case ActionKind::kReduceTied:  // behind all other reductions, so that they are in one order on every rank
      starts(Lane::kNetwork);
      touch(Resource::kGradients, Access::kRead, kEvery);
      touch(Resource::kGradients, Access::kUpdate, action.unit);
      break;
    case ActionKind::kReducePartial:
      effects.lane = Lane::kNetwork;
      effects.collective = true;
      touch(Resource::kGradients, Access::kUpdate, kEvery);
      break;
    case ActionKind::kTokens:
      starts(Lane::kNetwork);
      touch(Resource::kTokens, Access::kCreate, 0);
      break;
    case ActionKind::kLoss:
      effects.lane = Lane::kNetwork;
      waits_for_all();
      touch(Resource::kLosses, Access::kUpdate, 0);
      touch(Resource::kSent, Access::kConsume, kEvery);
      break;
    case ActionKind::kNorm:
      waits_for_all();
      touch(Resource::kGradients, Access::kRead, kEvery);
      touch(Resource::kTokens, Access::kRead, 0);
      touch(Resource::kNorm, Access::kCreate, 0);
      break;
    case ActionKind::kStep:
      touch(Resource::kGradients, Access::kRead, action.unit >= 0 ? action.unit : kEvery);
      touch(Resource::kStates, Access::kUpdate, action.unit >= 0 ? action.unit : kEvery);
      touch(Resource::kParameters, Access::kUpdate, action.unit >= 0 ? action.unit : kEvery);
      break;
    case ActionKind::kPull:
      starts(Lane::kNetwork);
      touch_units(bucket(action), Resource::kParameters, Access::kUpdate, effects);
      break;
    case ActionKind::kValidate:
      effects.lane = Lane::kNetwork;
      touch(Resource::kLosses, Access::kConsume, 0);
      touch(Resource::kNorm, Access::kConsume, 0);
      break;
  }
  return effects;
}

// What is dropped because nothing changed it moves nothing.
void EffectTable::move(const Action& action, Effects& effects) const {
  const bool fetch = action.kind == ActionKind::kFetch;
  if (fetch || action.moved != Moved::kParameters) {
    effects.lane = Lane::kCopies;
    effects.join = Join::kAtTouch;
  }
  switch (action.moved) {
    case Moved::kParameters:
      return effects.touches.push_back({Resource::kParameters, fetch ? Access::kUpdate : Access::kDrop, action.unit});
    case Moved::kOptimizer:
      return effects.touches.push_back({Resource::kStates, Access::kUpdate, action.unit});
    case Moved::kActivation:
      return effects.touches.push_back({Resource::kSaved, Access::kUpdate, action.layer});
  }
}

bool reduces(ActionKind kind) {
  return kind == ActionKind::kReduceGrad || kind == ActionKind::kShardGrad || kind == ActionKind::kReduceShard ||
         kind == ActionKind::kPush;
}

bool is_transfer(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward || kind == ActionKind::kRecvForward || kind == ActionKind::kRecvBackward;
}

std::vector<int> units_read(const Action& action, const std::vector<arch::ParamSpec>& table) {
  const bool forward = action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute;
  const bool input = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  constexpr int kEmbedding = 0;
  if (action.layer < 0 || !(forward || (input && action.layer != kEmbedding))) return {};
  std::set<int> units;
  for (const arch::ParamSpec& spec : table)
    if (spec.layer == action.layer ||
        ((forward || input) && std::count(spec.tied_layers.begin(), spec.tied_layers.end(), action.layer) > 0))
      units.insert(spec.layer);
  return {units.begin(), units.end()};
}

std::vector<int> units_written(const Action& action, const std::vector<arch::ParamSpec>& table, int head) {
  const bool weight = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
  const bool input = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  std::set<int> units;
  if (weight) units.insert(action.layer);
  if (input && action.layer == head) {
    int projection = head;
    for (const arch::ParamSpec& spec : table)
      if (std::count(spec.tied_layers.begin(), spec.tied_layers.end(), head) > 0) projection = spec.layer;
    units.insert(projection);
  }
  return {units.begin(), units.end()};
}

std::vector<int> writers(const Bucket& bucket, const std::vector<arch::ParamSpec>& table) {
  std::set<int> layers(bucket.layers.begin(), bucket.layers.end());
  for (const arch::ParamSpec& spec : table) {
    if (!spec.tied_layers.empty() && std::count(bucket.layers.begin(), bucket.layers.end(), spec.layer) > 0) {
      layers.insert(spec.tied_layers.begin(), spec.tied_layers.end());
    }
  }
  return {layers.begin(), layers.end()};
}

}  // namespace lockstep::program
