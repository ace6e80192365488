#include "lockstep/engine/executor.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/engine/out_of_memory.h"
#include "lockstep/model/model.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/passes/build.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/verify/build.h"

namespace lockstep::engine {
namespace {

using program::Action;
using program::ActionKind;

StoreOptions store_options(const ExecutorOptions& options, const Groups& groups, std::shared_ptr<MemoryAccount> memory) {
  const program::Layout& layout = options.layout;
  const mesh::Mesh& mesh = layout.mesh;
  return {.dtype = layout.precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat,
          .device = options.device,
          .owns_optimizer = layout.owns_optimizer(groups.rank()),
          .sole_owner = layout.server_mode(),
          .shards = layout.shards(),
          .shard = layout.shard(groups.rank()),
          .sharded_parameters = layout.sharded_parameters(),
          .transient_gradients = layout.transient_gradients(),
          .offload_optimizer = layout.offload.optimizer,
          .offload_parameters = layout.offload.parameters,
          .disk_units = program::host_plan(layout, groups.rank()).disk_units,
          .disk_path = options.disk_path,
          .rank = groups.rank(),
          .replica = mesh.group_rank(groups.rank(), mesh::kDataAxes),
          .num_replicas = mesh.degree(mesh::kDataAxes),
          .shard_replica = layout.shards() > 1 ? mesh.coordinates(groups.rank())[mesh::Axis::kDpReplicate]
                                               : mesh.group_rank(groups.rank(), mesh::kDataAxes),
          .num_shard_replicas = mesh.degree(mesh::kDataAxes) / layout.shards(),
          .tied_copies = layout.tied_peer(groups.rank()) >= 0 ? 2 : 1,
          .tied_copy = layout.holds(groups.rank(), 0) ? 0 : 1,
          .memory = std::move(memory)};
}

std::unique_ptr<parallel::TensorGroup> tensor_group(const program::Layout& layout, Groups& groups) {
  if (!groups.tensor()) return nullptr;
  return std::make_unique<parallel::TensorGroup>(
      *groups.tensor(),
      parallel::TensorOptions{.sequence_parallel = layout.sequence_parallel, .overlap = layout.overlap});
}

std::unique_ptr<CopyQueue> copy_queue(const program::Layout& layout) {
  const program::Offload& offload = layout.offload;
  return offload.optimizer || offload.activations ? std::make_unique<CopyQueue>() : nullptr;
}

}  // namespace

Executor::Executor(ExecutorOptions options, Groups& groups)
    : options_(std::move(options)),
      groups_(groups),
      program_(program::build_program(options_.layout)),
      evaluation_(program::evaluation_program(options_.layout)),
      memory_(std::make_shared<MemoryAccount>(options_.layout.device_limit)),
      store_(options_.layout.param_table(groups.rank()), store_options(options_, groups, memory_)),
      copies_(copy_queue(options_.layout)),
      activations_(options_.layout.offload.activations ? std::make_unique<ActivationOffload>(*copies_, memory_) : nullptr),
      gather_(options_.layout, store_, groups, waits_, copies_.get()),
      gradients_(options_.layout, program_.buckets, store_, groups, waits_),
      links_(options_.layout, program_.channel_depth, groups, waits_),
      tensor_(tensor_group(options_.layout, groups)),
      layers_(model::build_layers(options_.layout.model, store_,
                                  {.seed = options_.seed,
                                   .training = true,
                                   .tensor = tensor_.get(),
                                   .layers = options_.layout.layers_of(groups.rank())})),
      evaluation_layers_(model::build_layers(options_.layout.model, store_,
                                             {.seed = options_.seed,
                                              .training = false,
                                              .tensor = tensor_.get(),
                                              .layers = options_.layout.layers_of(groups.rank())})) {
  store_.initialize(options_.seed);
  gradients_.watch().mark_by(options_.mark_nonfinite);
  if (!options_.layout.pipeline.post_validation) return;
  LOCKSTEP_CHECK(!options_.skip_nonfinite, "a step cannot be left out once the next one has begun");
  before_ = std::make_unique<StateCopy>(store_);
  clipped_ = options_.max_grad_norm > 0;
}

Executor::~Executor() = default;

bool Executor::is_server() const {
  return options_.layout.server_mode() && options_.layout.owns_optimizer(groups_.rank());
}

StepResult Executor::step(const std::vector<nn::Microbatch>& microbatches, int64_t step, double lr, bool may_pend) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(microbatches.size()), options_.layout.num_microbatches());
  microbatches_ = &microbatches;
  step_ = step;
  lr_ = lr;
  result_ = {};
  if (tensor_) tensor_->take_exposed();  // what layers waited for in an evaluation is not this step's
  losses_.assign(microbatches.size(), at::Tensor());
  pends_ = may_pend && before_ && !clipped_;
  if (!before_) gradients_.start_step();  // else VALIDATE does, which may still need those of the step before
  run_list();
  note_waits();
  if (copies_) result_.copies = copies_->take_totals();
  if (store_.host() && store_.host()->disk()) result_.disk = store_.host()->disk()->take_totals();
  LOCKSTEP_CHECK(saved_.empty() && inputs_.empty() && flowing_.empty(), "activations left after the last action");
  microbatches_ = nullptr;
  result_.pending = pends_;
  return result_;
}

void Executor::run_list() {
  const MemoryScope scope(memory_, kStepMemory);
  const std::vector<Action>& actions = program_.list(groups_.rank());
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    try {
      if (options_.before_action) options_.before_action(action, store_);
      if (recorder_) recorder_->begin();
      run(action);
      if (recorder_) recorder_->end(i);
    } catch (...) {
      rethrow_out_of_memory(options_.layout, groups_.rank(), describe(action, options_.layout), measured_memory());
    }
    if (!result_.skipped.empty()) return;  // on all ranks after the same action: none waits for the rest of the list
    if (std::exchange(begins_again_, false)) return run_list();
  }
}

void Executor::run(const Action& action) {
  read_parameters(action);
  memory_->restart_peak(kStepMemory);
  const int64_t before = memory_->live(kStepMemory);
  handle(action);
  // Actions that compute have told what of it they leave behind.
  if (action.kind > ActionKind::kRecompute) note_workspace(std::max(before, memory_->live(kStepMemory)));
}

void Executor::handle(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action);
    case ActionKind::kRecompute:
      return recompute(action);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      return backward(action);
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return send(action);
    case ActionKind::kRecvForward:
    case ActionKind::kRecvBackward:
      receive(action, microbatches_->at(static_cast<size_t>(action.microbatch)));
      return note_activations();
    case ActionKind::kUnshard:
      return gather_.unshard(action.unit);
    case ActionKind::kReshard:
      return gather_.reshard(action.unit);
    case ActionKind::kFetch:
      return fetch(action);
    case ActionKind::kEvict:
      return evict(action);
    case ActionKind::kReduceGrad:
      return gradients_.reduce(action);
    case ActionKind::kShardGrad:
      return gradients_.shard(action);
    case ActionKind::kReduceShard:
      return gradients_.reduce_shard(action);
    case ActionKind::kPush:
      return gradients_.push(action);
    case ActionKind::kReduceTied:
      return gradients_.reduce_tied(action);
    case ActionKind::kLoss:
      links_.flush();
      return reduce_loss();
    case ActionKind::kReducePartial:
      return gradients_.reduce_partial();
    case ActionKind::kNorm:
      return norm();
    case ActionKind::kStep:
      return update(action);
    case ActionKind::kTokens:
      return start_tokens();
    case ActionKind::kValidate:
      return validate();
    case ActionKind::kPull:
      return gather_.pull(program_.buckets.at(static_cast<size_t>(action.bucket)), action.bucket);
    default:
      break;
  }
  LOCKSTEP_CHECK(false, "no handler for ", program::action_name(action.kind));
}

// What the action reads has come, and what it adds to is there.
void Executor::read_parameters(const Action& action) {
  if (action.kind > ActionKind::kRecompute) return;
  const Units& touched = units(action);
  gather_.ready(touched.read);
  if (recorder_) recorder_->ready();
  gradients_.open(touched.written);
}

const Executor::Units& Executor::units(const Action& action) {
  const auto [place, fresh] = units_.try_emplace({action.kind, action.layer});
  if (fresh)
    place->second = {program::units_read(action, store_.table()), program::units_written(action, store_.table(), options_.layout.num_layers() - 1)};
  return place->second;
}

void Executor::forward(const Action& action) {
  const nn::Microbatch& microbatch = microbatches_->at(static_cast<size_t>(action.microbatch));
  const Key key{action.layer, action.microbatch};
  nn::Layer& layer = *layers_[static_cast<size_t>(action.layer)];
  const arch::Recompute recompute = options_.layout.recompute_of(action.layer);
  const at::Tensor x = take_input(action);
  at::Tensor output;
  if (recompute == arch::Recompute::kFull) {
    output = layer.forward(x, microbatch, nullptr);
    inputs_[key] = x;
  } else {
    std::unique_ptr<nn::Saved>& saved = saved_[key];
    output = layer.forward(x, microbatch, &saved);
    if (recompute == arch::Recompute::kSelective) layer.forget(*saved);
  }
  note_workspace(memory_->live(kStepMemory));
  if (output.defined()) flowing_[{action.layer + 1, action.microbatch, false}] = std::move(output);  // the head has none
  note_activations();
}

void Executor::recompute(const Action& action) {
  const Key key{action.layer, action.microbatch};
  nn::Layer& layer = *layers_[static_cast<size_t>(action.layer)];
  if (activations_ && activations_->fetched(key)) inputs_[key] = activations_->take(key);
  memory_->restart_peak(kStepMemory);
  if (const auto input = inputs_.extract(key))
    saved_[key] = layer.recompute(input.mapped(), microbatches_->at(static_cast<size_t>(action.microbatch)));
  else
    layer.restore(*saved_.at(key));
  note_workspace(memory_->live(kStepMemory));
  note_activations();
}

void Executor::backward(const Action& action) {
  const auto saved = saved_.find({action.layer, action.microbatch});
  LOCKSTEP_CHECK(saved != saved_.end(), "layer ", action.layer, " kept nothing for microbatch ", action.microbatch);
  nn::Layer& layer = *layers_[static_cast<size_t>(action.layer)];
  int64_t baseline = memory_->live(kStepMemory);
  at::Tensor dy = action.kind == ActionKind::kBackwardWeight ? at::Tensor() : take_input(action);
  at::Tensor dx;
  if (action.kind == ActionKind::kBackward) dx = layer.backward(dy, *saved->second);
  if (action.kind == ActionKind::kBackwardInput) dx = layer.backward_input(dy, *saved->second);
  if (action.kind == ActionKind::kBackwardWeight) layer.backward_weight(*saved->second);
  if (dx.defined()) {
    baseline += static_cast<int64_t>(dx.nbytes());
    flowing_[{action.layer - 1, action.microbatch, true}] = std::move(dx);
  }
  dy.reset();
  if (at::Tensor& loss = saved->second->loss; loss.defined())
    losses_[static_cast<size_t>(action.microbatch)] = std::exchange(loss, {});
  if (action.kind != ActionKind::kBackwardInput) saved_.erase(saved);
  note_workspace(baseline);
  note_activations();
}

void Executor::fetch(const Action& action) {
  switch (action.moved) {
    case program::Moved::kParameters:
      return gather_.fetch(action.unit);
    case program::Moved::kActivation:
      activations_->fetch({action.layer, action.microbatch});
      return note_activations();
    case program::Moved::kOptimizer:
      return store_.host()->disk()->fetch(store_.unit_of(action.unit));
  }
}

void Executor::evict(const Action& action) {
  switch (action.moved) {
    case program::Moved::kParameters:
      return gather_.evict(action.unit);
    case program::Moved::kActivation: {
      auto input = inputs_.extract({action.layer, action.microbatch});
      LOCKSTEP_CHECK(!input.empty(), "layer ", action.layer, " kept no input of microbatch ", action.microbatch);
      activations_->evict({action.layer, action.microbatch}, std::move(input.mapped()));
      return note_activations();
    }
    case program::Moved::kOptimizer:
      return store_.host()->disk()->evict(store_.unit_of(action.unit));
  }
}

void Executor::update(const Action& action) {
  DiskStates* disk = store_.host() ? store_.host()->disk() : nullptr;
  if (disk && action.unit >= 0 && store_.host()->on_disk(store_.unit_of(action.unit))) disk->ready(store_.unit_of(action.unit));
  optim::adamw_step(updated(action.unit), options_.adamw, lr_, step_, gradient_scale_);
}

// Of one unit (the layer that owns it), or of all. A GPU stands still while they are put together, so views that stay are
// made once; what is offloaded may lie elsewhere each time.
const std::vector<optim::AdamWParameter>& Executor::updated(int layer) {
  const auto [place, fresh] = updated_.try_emplace(layer);
  std::vector<optim::AdamWParameter>& parameters = place->second;
  if (!fresh && !store_.host()) return parameters;
  parameters.clear();
  for (size_t unit = 0; unit < store_.layout().units.size(); ++unit)
    if (layer < 0 || store_.layout().units[unit].layer == layer)
      for (optim::AdamWParameter& parameter : store_.adamw_parameters(unit)) parameters.push_back(std::move(parameter));
  return parameters;
}

}  // namespace lockstep::engine
