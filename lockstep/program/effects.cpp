#include "lockstep/program/effects.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "lockstep/program/matrices.h"

namespace lockstep::program {

bool by_microbatch(Resource resource) {
  return resource == Resource::kInput || resource == Resource::kOutputGrad || resource == Resource::kSaved || resource == Resource::kSent;
}

EffectTable::EffectTable(const Layout& layout, std::span<const Bucket> buckets, int rank)
    : layout_(&layout),
      buckets_(buckets),
      rank_(rank),
      places_(std::max({static_cast<size_t>(layout.num_layers()), static_cast<size_t>(layout.pipeline.stages()), buckets.size()})) {}

const Effects& EffectTable::of(const Action& action) {
  static const Effects kNothing{};
  if (computes(action.kind) && action.layer < 0) return kNothing;
  constexpr size_t kMoved = 3;
  if (known_.empty()) known_.resize(std::size(kActionKinds) * kMoved * (places_ + 1));
  const int place = action.layer >= 0 ? action.layer : action.unit >= 0 ? action.unit : action.bucket >= 0 ? action.bucket : action.stage;
  const size_t what = static_cast<size_t>(action.kind) * kMoved + static_cast<size_t>(action.moved);
  std::unique_ptr<const Effects>& known = known_.at(what * (places_ + 1) + static_cast<size_t>(place + 1));
  if (!known) known = std::make_unique<const Effects>(make(action));
  return *known;
}

State EffectTable::at_rest(Resource what, int unit) {
  if (what == Resource::kParameters) return parameters_at_rest();
  if (what == Resource::kGradients) return unsummed(unit);
  if (what == Resource::kDirections) return kAway;
  if (what != Resource::kStates || !layout_->offload.optimizer) return 0;
  if (!plan_) plan_ = host_plan(*layout_, rank_);
  return plan_->on_disk(unit) ? kAway : 0;
}

State EffectTable::parameters_at_rest() const {
  return (layout_->sharded_parameters() ? kShardOnly : 0) | (layout_->offload.parameters ? kAway : 0);
}

// Of the step. What is only part of a sum over each microbatch is added by what opens a transient gradient.
State EffectTable::unsummed(int unit) {
  const mesh::Mesh& mesh = layout_->mesh;
  const bool transient = layout_->transient_gradients();
  State state = 0;
  if (!transient && mesh.degree(layout_->tokens()) > 1) state |= kPartOfTokens;
  if ((transient || layout_->shards() > 1) && mesh.degree(layout_->dense_domain().copies) > 1) state |= kPartOfCopies;
  if (!layout_->owns_optimizer(rank_)) return state;
  if (unit == 0 && layout_->tied_peer(rank_) >= 0) state |= kPartOfStages;
  const auto partial = [&](const arch::ParamSpec& spec) { return spec.layer == unit && spec.partial; };
  return std::ranges::any_of(table(), partial) ? state | kPartOfTp : state;
}

const std::vector<arch::ParamSpec>& EffectTable::table() {
  if (table_.empty()) table_ = layout_->param_table(rank_);
  return table_;
}

std::span<const int> EffectTable::bucket(const Action& action) const {
  return buckets_[static_cast<size_t>(action.bucket)].layers;
}

// F, RECOMPUTE, B, I and W of a layer.
void EffectTable::compute(const Action& action, Effects& effects) {
  const int layer = action.layer, last = layout_->num_layers() - 1;
  const Work work = work_of(action.kind);
  const bool forward = work == Work::kForward, input = goes_back(action.kind);
  const auto touch = [&](Resource what, Access how, int index, State from = 0, State to = 0) {
    effects.touches.push_back({what, how, index, from, to});
  };
  for (const int unit : units_read(action, table())) touch(Resource::kParameters, Access::kRead, unit);
  if (forward && layer > 0) touch(Resource::kInput, Access::kConsume, layer);
  if (forward && layer < last) touch(Resource::kInput, Access::kCreate, layer + 1);
  if (input && layer < last) touch(Resource::kOutputGrad, Access::kConsume, layer);
  if (input && layer > 0) touch(Resource::kOutputGrad, Access::kCreate, layer - 1);
  if (input && layer == last) touch(Resource::kLosses, Access::kAdd, 0);
  const arch::Recompute recompute = layout_->recompute_of(layer);
  const State copied = layout_->offload.activations && recompute == arch::Recompute::kFull ? kCopied : 0;
  switch (work) {
    case Work::kForward:
      touch(Resource::kSaved, Access::kCreate, layer, 0, recompute == arch::Recompute::kNone ? 0 : kIncomplete);
      break;
    case Work::kAgain:
      touch(Resource::kSaved, Access::kUpdate, layer, kIncomplete | copied);
      break;
    case Work::kInput:
      touch(Resource::kSaved, Access::kUpdate, layer, 0, kForWeights);
      break;
    case Work::kWeight:
      touch(Resource::kSaved, Access::kConsume, layer, kForWeights);
      break;
    case Work::kInputAndWeight:
      touch(Resource::kSaved, Access::kConsume, layer);
      break;
    case Work::kNone:
      break;
  }
  State opens = 0;
  if (layout_->transient_gradients()) opens = kOpen | (layout_->shards() > 1 ? kPartOfTokens : 0);
  for (const int unit : units_written(action, table(), last)) {
    const State part = unsummed(unit);
    touch(Resource::kGradients, Access::kAdd, unit, part, part | opens);
  }
}

Effects EffectTable::make(const Action& action) {
  Effects effects;
  const auto touch = [&](Resource what, Access how, int index, State from = 0, State to = 0) {
    effects.touches.push_back({what, how, index, from, to});
  };
  const auto touch_bucket = [&](Resource what, State from) {
    for (const int unit : bucket(action)) touch(what, Access::kUpdate, unit, from);
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
  const bool by_stage = action.layer < 0 && action.stage >= 0;
  const auto [begin, end] = by_stage ? layout_->stage_layers(action.stage) : Layout::Stretch{};
  switch (action.kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kRecompute:
      compute(action, effects);
      break;
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward: {
      const bool forward = transfer_of(action).forward;
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
      touch(Resource::kParameters, Access::kUpdate, action.unit, kShardOnly);
      break;
    case ActionKind::kReshard:
      touch(Resource::kParameters, Access::kDrop, action.unit, 0, kShardOnly);
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
      touch(Resource::kGradients, Access::kRead, kEvery, kUnsummed, kUnsummed);
      touch(Resource::kGradients, Access::kUpdate, action.unit, kPartOfStages);
      break;
    case ActionKind::kReducePartial:
      effects.lane = Lane::kNetwork;
      effects.collective = true;
      touch(Resource::kGradients, Access::kUpdate, kEvery, kPartOfTp);
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
      if (layout_->pipeline.post_validation && layout_->mesh.degree(layout_->tokens()) > 1)  // else LOSS brings them, or they are known
        touch(Resource::kTokens, Access::kConsume, 0);
      touch(Resource::kNorm, Access::kCreate, 0);
      break;
    case ActionKind::kStep:
      step(action, effects);
      break;
    case ActionKind::kGatherUpdate:  // between some ranks of a group: not all have a part in each
      starts(Lane::kNetwork);
      effects.collective = false;
      touch(Resource::kGradients, Access::kRead, action.unit);
      touch(Resource::kNorm, Access::kRead, 0);
      touch(Resource::kStates, Access::kUpdate, action.unit);
      touch(Resource::kDirections, Access::kCreate, action.unit, kAway, kIncomplete);
      break;
    case ActionKind::kScatterUpdate:
      starts(Lane::kNetwork);
      effects.collective = false;
      touch(Resource::kDirections, Access::kUpdate, action.unit, kIncomplete);
      break;
    case ActionKind::kPull:
      starts(Lane::kNetwork);
      touch_bucket(Resource::kParameters, 0);
      break;
    case ActionKind::kValidate:
      effects.lane = Lane::kNetwork;
      touch(Resource::kLosses, Access::kConsume, 0);
      touch(Resource::kNorm, Access::kConsume, 0);
      break;
  }
  return effects;
}

// Parameters that the device keeps are brought up to date: by FETCH where the update runs on the host, and by UNSHARD where
// this rank updates its shard alone.
void EffectTable::step(const Action& action, Effects& effects) const {
  const int unit = action.unit >= 0 ? action.unit : kEvery;
  const State before = parameters_at_rest();
  State behind = before | (layout_->shards() > 1 ? kShardOnly : 0);
  if (layout_->offload.optimizer) behind |= kAway;
  effects.touches = {{Resource::kGradients, Access::kRead, unit},
                     {Resource::kStates, Access::kUpdate, unit},
                     {Resource::kParameters, Access::kUpdate, unit, before, behind}};
  if (action.unit >= 0 && scatters_matrices(*layout_, rank_, unit))
    effects.touches.push_back({Resource::kDirections, Access::kConsume, unit, 0, kAway});
}

// What is dropped because nothing changed it moves nothing.
void EffectTable::move(const Action& action, Effects& effects) const {
  const bool fetch = fetches(action.kind);
  if (fetch || action.moved != Moved::kParameters) {
    effects.lane = Lane::kCopies;
    effects.join = Join::kAtTouch;
  }
  const State from = fetch ? kAway : 0;
  switch (action.moved) {
    case Moved::kParameters:
      return effects.touches.push_back({Resource::kParameters, fetch ? Access::kUpdate : Access::kDrop, action.unit, from, kAway & ~from});
    case Moved::kOptimizer:
      return effects.touches.push_back({Resource::kStates, Access::kUpdate, action.unit, from, kAway & ~from});
    case Moved::kActivation:
      return effects.touches.push_back({Resource::kSaved, Access::kUpdate, action.layer, from, fetch ? kCopied : kAway});
  }
}

bool reduces(ActionKind kind) {
  return kind == ActionKind::kReduceGrad || kind == ActionKind::kShardGrad || kind == ActionKind::kReduceShard ||
         kind == ActionKind::kPush;
}

bool of_bucket(ActionKind kind) { return reduces(kind) || kind == ActionKind::kPull; }

bool gathers(ActionKind kind) { return kind == ActionKind::kUnshard; }
bool drops_gathered(ActionKind kind) { return kind == ActionKind::kReshard; }
bool updates(ActionKind kind) { return kind == ActionKind::kStep; }
bool makes_norm(ActionKind kind) { return kind == ActionKind::kNorm; }
bool sums_tied(ActionKind kind) { return kind == ActionKind::kReduceTied; }
bool ends_sends(ActionKind kind) { return kind == ActionKind::kLoss; }

bool is_move(ActionKind kind) { return kind == ActionKind::kFetch || kind == ActionKind::kEvict; }
bool fetches(ActionKind kind) { return kind == ActionKind::kFetch; }

bool moves_matrices(ActionKind kind) { return kind == ActionKind::kGatherUpdate || kind == ActionKind::kScatterUpdate; }

bool sums_partial(ActionKind kind) { return kind == ActionKind::kReducePartial; }

std::vector<int> units_read(const Action& action, const std::vector<arch::ParamSpec>& table) {
  const bool forward = work_of(action.kind) == Work::kForward || work_of(action.kind) == Work::kAgain;
  const bool input = goes_back(action.kind);
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
  std::set<int> units;
  if (adds_to_weights(action.kind)) units.insert(action.layer);
  if (goes_back(action.kind) && action.layer == head) {
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
