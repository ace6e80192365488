#include "lockstep/program/effects.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "lockstep/program/matrices.h"

namespace lockstep::program {

bool by_microbatch(Resource resource) {
  return resource == Resource::kInput || resource == Resource::kOutputGrad || resource == Resource::kSaved ||
         resource == Resource::kForwardParts || resource == Resource::kBackwardParts || resource == Resource::kSent;
}

EffectTable::EffectTable(const Layout& layout, std::span<const Bucket> buckets, int rank)
    : layout_(&layout),
      buckets_(buckets),
      rank_(rank),
      places_(std::max({static_cast<size_t>(layout.num_units()), static_cast<size_t>(layout.pipeline.stages()), buckets.size()})) {}

const Effects& EffectTable::of(const Action& action) {
  static const Effects kNothing{};
  if (computes(action.kind) && action.layer < 0) return kNothing;
  constexpr size_t kVariants = 1 + kParts;  // what is moved, or the part
  if (known_.empty()) known_.resize(std::size(kActionKinds) * kVariants * (places_ + 1));
  const int place = action.layer >= 0 ? action.layer : action.unit >= 0 ? action.unit : action.bucket >= 0 ? action.bucket : action.stage;
  const size_t variant = computes(action.kind) ? static_cast<size_t>(action.part + 1) : static_cast<size_t>(action.moved);
  const size_t what = static_cast<size_t>(action.kind) * kVariants + variant;
  std::unique_ptr<const Effects>& known = known_.at(what * (places_ + 1) + static_cast<size_t>(place + 1));
  if (!known) known = std::make_unique<const Effects>(make(action));
  return *known;
}

State EffectTable::at_rest(Resource what, int unit) {
  if (what == Resource::kParameters) return parameters_at_rest(unit);
  if (what == Resource::kGradients) return unsummed(unit);
  if (what == Resource::kDirections) return kAway;
  if (what == Resource::kLosses) return layout_->pipeline.post_validation ? 0 : kIncomplete;  // those of the step before, until VALIDATE
  if (what != Resource::kStates || !layout_->offload.optimizer) return 0;
  if (!plan_) plan_ = host_plan(*layout_, rank_);
  return plan_->on_disk(unit) ? kAway : 0;
}

State EffectTable::parameters_at_rest(int unit) const {
  return (layout_->sharded_parameters(layout_->group_of(unit)) ? kShardOnly : 0) | (layout_->offload.parameters ? kAway : 0);
}

// Of the step. What is only part of a sum over each microbatch is added by what opens a transient gradient.
State EffectTable::unsummed(int unit) {
  const mesh::Mesh& mesh = layout_->mesh;
  const arch::ParameterGroup group = layout_->group_of(unit);
  const bool transient = layout_->transient_gradients(group);
  const Domain domain = layout_->domain(group);
  State state = 0;
  if (!transient && mesh.degree(domain.sum) > 1) state |= kPartOfTokens;
  if ((transient || layout_->shards(group) > 1) && mesh.degree(domain.copies) > 1) state |= kPartOfCopies;
  if (!layout_->owns_optimizer(rank_)) return state;
  if (unit == 0 && layout_->tied_peer(rank_) >= 0) state |= kPartOfStages;
  const auto partial = [&](const arch::ParamSpec& spec) { return spec.unit == unit && spec.partial; };
  return std::ranges::any_of(table(), partial) ? state | kPartOfTp : state;
}

const std::vector<arch::ParamSpec>& EffectTable::table() {
  if (table_.empty()) table_ = layout_->param_table(rank_);
  return table_;
}

// F, RECOMPUTE, B, I and W of a layer.
void EffectTable::compute(const Action& action, Effects& effects) {
  const int layer = action.layer, last = layout_->num_layers() - 1;
  const Work work = work_of(action.kind);
  const bool forward = work == Work::kForward, input = goes_back(action.kind);
  const bool begins = begins_pass(action), ends = ends_pass(action);
  for (const int unit : units_read(action, table())) effects.touch(Resource::kParameters, Access::kRead, unit);
  if (forward && begins && layer > 0) effects.touch(Resource::kInput, Access::kConsume, layer);
  if (forward && ends && layer < last) effects.touch(Resource::kInput, Access::kCreate, layer + 1);
  if (input && begins && layer < last) effects.touch(Resource::kOutputGrad, Access::kConsume, layer);
  if (input && ends && layer > 0) effects.touch(Resource::kOutputGrad, Access::kCreate, layer - 1);
  if (input && layer == last) effects.touch(Resource::kLosses, Access::kAdd, 0, kIncomplete, kIncomplete);
  const Resource parts = forward ? Resource::kForwardParts : Resource::kBackwardParts;
  if (action.part == 0) effects.touch(parts, Access::kCreate, layer, 0, kForExperts);
  if (action.part == 1) effects.touch(parts, Access::kUpdate, layer, kAtExperts, kFromExperts);
  if (action.part == 2) effects.touch(parts, Access::kConsume, layer);
  change_saved(action, effects);
  for (const int unit : ends ? units_written(action, table(), last) : std::vector<int>()) {
    const bool transient = layout_->transient_gradients(layout_->group_of(unit));
    const State part = unsummed(unit), opens = !transient ? 0 : kOpen | (layout_->shards_of_unit(unit) > 1 ? kPartOfTokens : 0);
    effects.touch(Resource::kGradients, Access::kAdd, unit, part, part | opens);
  }
}

// F in parts leaves what it keeps with the last, and a backward in parts uses it up with the last.
void EffectTable::change_saved(const Action& action, Effects& effects) const {
  const int layer = action.layer;
  const Work work = work_of(action.kind);
  if (!ends_pass(action)) {
    if (work != Work::kForward) effects.touch(Resource::kSaved, Access::kRead, layer);
    return;
  }
  const arch::Recompute recompute = layout_->recompute_of(layer);
  const State copied = layout_->offload.activations && recompute == arch::Recompute::kFull ? kCopied : 0;
  switch (work) {
    case Work::kForward:
      effects.touch(Resource::kSaved, Access::kCreate, layer, 0, recompute == arch::Recompute::kNone ? 0 : kIncomplete);
      break;
    case Work::kAgain:
      effects.touch(Resource::kSaved, Access::kUpdate, layer, kIncomplete | copied);
      break;
    case Work::kInput:
      effects.touch(Resource::kSaved, Access::kUpdate, layer, 0, kForWeights);
      break;
    case Work::kWeight:
      effects.touch(Resource::kSaved, Access::kConsume, layer, kForWeights);
      break;
    case Work::kInputAndWeight:
      effects.touch(Resource::kSaved, Access::kConsume, layer);
      break;
    case Work::kNone:
      break;
  }
}

Effects EffectTable::make(const Action& action) {
  Effects effects;
  const auto touch_bucket = [&](Resource what, State from) {
    for (const int unit : buckets_[static_cast<size_t>(action.bucket)].units) effects.touch(what, Access::kUpdate, unit, from);
  };
  const auto starts = [&](Lane lane) {
    effects.lane = lane;
    effects.join = Join::kAtTouch;
    effects.collective = lane == Lane::kNetwork;
  };
  const auto waits_for_all = [&] {
    effects.join = layout_->pipeline.post_validation ? Join::kAtTouch : Join::kAtOnce;  // VALIDATE joins them
    effects.collective = effects.host_reads = true;
  };
  switch (action.kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kRecompute:
      compute(action, effects);
      break;
    case ActionKind::kDispatchForward:
    case ActionKind::kCombineForward:
    case ActionKind::kCombineBackward:
    case ActionKind::kDispatchBackward: {
      starts(Lane::kNetwork);
      const bool there = leads_to_experts(action.kind);
      effects.touch(words_of(action.kind).gradients ? Resource::kBackwardParts : Resource::kForwardParts, Access::kUpdate, action.layer,
                    there ? kForExperts : kFromExperts, there ? kAtExperts : 0);
      break;
    }
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
    case ActionKind::kRecvForward:
    case ActionKind::kRecvBackward: {
      const auto [sends, forward, neighbour] = transfer_of(action);
      const auto [begin, end] = layout_->stage_layers(action.stage);
      const int above = sends == forward ? end : begin;  // the layer behind the border to the neighbour
      starts(Lane::kChannel);
      effects.touch(forward ? Resource::kInput : Resource::kOutputGrad, sends ? Access::kConsume : Access::kCreate, forward ? above : above - 1);
      if (sends) effects.touch(Resource::kSent, Access::kCreate, 2 * action.stage + (forward ? 1 : 0));
      break;
    }
    case ActionKind::kUnshard:
      starts(Lane::kNetwork);
      effects.touch(Resource::kParameters, Access::kUpdate, action.unit, kShardOnly);
      break;
    case ActionKind::kReshard:
      effects.touch(Resource::kParameters, Access::kDrop, action.unit, 0, kShardOnly);
      break;
    case ActionKind::kFetch:
    case ActionKind::kEvict:
      move(action, effects);
      break;
    case ActionKind::kReduceGrad:
    case ActionKind::kPush:
      starts(Lane::kNetwork);
      touch_bucket(Resource::kGradients, kPartOfTokens);
      break;
    case ActionKind::kReduceShard:
      starts(Lane::kNetwork);
      touch_bucket(Resource::kGradients, kPartOfCopies);
      break;
    case ActionKind::kShardGrad:
      touch_bucket(Resource::kGradients, kOpen);
      break;
    case ActionKind::kReduceTied:  // behind all other reductions, so that they are in one order on every rank
      starts(Lane::kNetwork);
      effects.touch(Resource::kGradients, Access::kRead, kEvery, kPartOfStages | kPartOfTp, kPartOfStages | kPartOfTp);
      effects.touch(Resource::kGradients, Access::kUpdate, action.unit, kPartOfStages);
      break;
    case ActionKind::kReducePartial: {  // the last of the reductions
      effects.lane = Lane::kNetwork;
      effects.collective = true;
      effects.touch(Resource::kGradients, Access::kRead, kEvery, kPartOfTp, kPartOfTp);
      std::set<int> units;
      for (const arch::ParamSpec& spec : table())
        if (spec.partial) units.insert(spec.unit);
      for (const int unit : units) effects.touch(Resource::kGradients, Access::kUpdate, unit, kPartOfTp);
      break;
    }
    case ActionKind::kTokens:
      starts(Lane::kNetwork);
      effects.touch(Resource::kTokens, Access::kCreate, 0);
      break;
    case ActionKind::kLoss:
      effects.lane = Lane::kNetwork;
      waits_for_all();
      effects.touch(Resource::kLosses, Access::kUpdate, 0, kIncomplete);
      effects.touch(Resource::kSent, Access::kConsume, kEvery);
      break;
    case ActionKind::kNorm:
      waits_for_all();
      effects.touch(Resource::kGradients, Access::kRead, kEvery);
      if (layout_->pipeline.post_validation && layout_->mesh.degree(layout_->tokens()) > 1)  // else LOSS brings them, or they are known
        effects.touch(Resource::kTokens, Access::kConsume, 0);
      effects.touch(Resource::kNorm, Access::kCreate, 0);
      break;
    case ActionKind::kStep:
      step(action, effects);
      break;
    case ActionKind::kGatherUpdate:  // between some ranks of a group: not all have a part in each
      starts(Lane::kNetwork);
      effects.collective = false;
      effects.touch(Resource::kGradients, Access::kRead, action.unit);
      effects.touch(Resource::kNorm, Access::kRead, 0);
      effects.touch(Resource::kStates, Access::kUpdate, action.unit);
      effects.touch(Resource::kDirections, Access::kCreate, action.unit, kAway, kIncomplete);
      break;
    case ActionKind::kScatterUpdate:
      starts(Lane::kNetwork);
      effects.collective = false;
      effects.touch(Resource::kDirections, Access::kUpdate, action.unit, kIncomplete);
      break;
    case ActionKind::kPull:
      starts(Lane::kNetwork);
      touch_bucket(Resource::kParameters, layout_->owns_optimizer(rank_) ? kShardOnly : 0);
      break;
    case ActionKind::kValidate:
      effects.lane = Lane::kNetwork;
      effects.touch(Resource::kLosses, Access::kUpdate, 0, 0, kIncomplete);
      effects.touch(Resource::kNorm, Access::kConsume, 0);
      break;
  }
  return effects;
}

// Parameters that the device keeps are brought up to date: by FETCH where the update runs on the host, by UNSHARD where this
// rank updates its shard alone, and by PULL where it updates for others.
State EffectTable::parameters_behind_step(int unit) const {
  const bool part = layout_->shards_of_unit(unit) > 1 || layout_->server_mode();
  return parameters_at_rest(unit) | (part ? kShardOnly : 0) | (layout_->offload.optimizer ? kAway : 0);
}

void EffectTable::step(const Action& action, Effects& effects) {
  const int unit = action.unit >= 0 ? action.unit : kEvery;
  effects.touches = {{Resource::kGradients, Access::kConsume, unit}, {Resource::kStates, Access::kUpdate, unit}};
  const bool alike = !layout_->model.has_experts() || (layout_->shards() > 1) == (layout_->shards(arch::ParameterGroup::kExperts) > 1);
  std::set<int> units;
  if (unit == kEvery && !alike) {
    for (const arch::ParamSpec& spec : table()) units.insert(spec.unit);
    for (const int each : units)
      effects.touch(Resource::kParameters, Access::kUpdate, each, parameters_at_rest(each), parameters_behind_step(each));
  } else {
    const int speaks = std::max(0, action.unit);  // for all
    effects.touch(Resource::kParameters, Access::kUpdate, unit, parameters_at_rest(speaks), parameters_behind_step(speaks));
  }
  if (action.unit < 0) return;
  if (!scattered_) scattered_ = scattered_units(*layout_, rank_);
  if (scattered_->contains(unit))
    effects.touch(Resource::kDirections, Access::kConsume, unit, 0, kAway);
}

// What is dropped because nothing changed it moves nothing.
void EffectTable::move(const Action& action, Effects& effects) const {
  const bool fetch = fetches(action.kind), drops = !fetch && action.moved == Moved::kParameters;
  if (!drops) {
    effects.lane = Lane::kCopies;
    effects.join = Join::kAtTouch;
  }
  const State from = fetch ? kAway : 0;
  if (action.moved == Moved::kActivation)
    return effects.touch(Resource::kSaved, Access::kUpdate, action.layer, from, fetch ? kCopied : kAway);
  effects.touch(action.moved == Moved::kParameters ? Resource::kParameters : Resource::kStates, drops ? Access::kDrop : Access::kUpdate,
                action.unit, from, kAway & ~from);
}

std::vector<int> units_read(const Action& action, const std::vector<arch::ParamSpec>& table) {
  const bool forward = work_of(action.kind) == Work::kForward || work_of(action.kind) == Work::kAgain;
  constexpr int kEmbedding = 0;
  if (action.layer < 0 || !(forward || (goes_back(action.kind) && action.layer != kEmbedding))) return {};
  std::set<int> units;
  for (const arch::ParamSpec& spec : table)
    if (spec.layer == action.layer || std::count(spec.tied_layers.begin(), spec.tied_layers.end(), action.layer) > 0)
      units.insert(spec.unit);
  return {units.begin(), units.end()};
}

std::vector<int> units_written(const Action& action, const std::vector<arch::ParamSpec>& table, int head) {
  std::set<int> units;
  if (adds_to_weights(action.kind))
    for (const arch::ParamSpec& spec : std::ranges::equal_range(table, action.layer, {}, &arch::ParamSpec::layer)) units.insert(spec.unit);
  if (goes_back(action.kind) && action.layer == head) {
    int projection = head;
    for (const arch::ParamSpec& spec : table)
      if (std::count(spec.tied_layers.begin(), spec.tied_layers.end(), head) > 0) projection = spec.layer;
    units.insert(projection);
  }
  return {units.begin(), units.end()};
}

std::vector<int> writers(const Bucket& bucket, const std::vector<arch::ParamSpec>& table) {
  std::set<int> layers;
  for (const arch::ParamSpec& spec : table) {
    if (std::ranges::find(bucket.units, spec.unit) == bucket.units.end()) continue;
    layers.insert(spec.layer);
    layers.insert(spec.tied_layers.begin(), spec.tied_layers.end());
  }
  return {layers.begin(), layers.end()};
}

}  // namespace lockstep::program
