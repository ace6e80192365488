#include "lockstep/engine/executor.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/engine/out_of_memory.h"
#include "lockstep/program/passes/build.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/verify/build.h"

namespace lockstep::engine {
namespace {

using program::Action;
using program::ActionKind;

StoreOptions store_options(const ExecutorOptions& options, const Groups& groups, std::shared_ptr<MemoryAccount> memory) {
  const program::Layout& layout = options.layout;
  const mesh::Mesh& mesh = layout.mesh;
  const program::Domain domain = layout.dense_domain();
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
          .replica = mesh.group_rank(groups.rank(), domain.sum),
          .num_replicas = mesh.degree(domain.sum),
          .shard_replica = mesh.group_rank(groups.rank(), domain.copies),
          .num_shard_replicas = mesh.degree(domain.copies),
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
      effects_(options_.layout, program_.buckets, groups.rank()),
      evaluation_effects_(options_.layout, evaluation_.buckets, groups.rank()),
      calls_(options_.layout, program_, groups.rank()),
      memory_(std::make_shared<MemoryAccount>(options_.layout.device_limit)),
      store_(options_.layout.param_table(groups.rank()), store_options(options_, groups, memory_.account())),
      copies_(copy_queue(options_.layout)),
      tensor_(tensor_group(options_.layout, groups)),
      gather_(options_.layout, store_, groups, calls_, waits_, copies_.get()),
      gradients_(options_.layout, program_.buckets, store_, groups, calls_, waits_),
      links_(options_.layout, program_.channel_depth, groups, calls_, waits_),
      layers_({.layout = options_.layout,
               .state = state_,
               .store = store_,
               .links = links_,
               .memory = memory_,
               .copies = copies_.get(),
               .tensor = tensor_.get(),
               .rank = groups.rank(),
               .seed = options_.seed}),
      matrices_({.layout = options_.layout, .state = state_, .store = store_, .groups = groups, .calls = calls_, .waits = waits_}, options_.optimizer),
      end_({.layout = options_.layout,
            .program = program_,
            .state = state_,
            .store = store_,
            .groups = groups,
            .calls = calls_,
            .gradients = gradients_,
            .layers = layers_,
            .links = links_,
            .joins = joins_,
            .waits = waits_,
            .matrices = matrices_},
           {.optimizer = options_.optimizer, .max_grad_norm = options_.max_grad_norm, .skip_nonfinite = options_.skip_nonfinite}) {
  store_.initialize(options_.seed);
  gradients_.watch().mark_by(options_.mark_nonfinite);
  layers_.add_handlers(handlers_);
  gather_.add_handlers(handlers_, program_.buckets);
  gradients_.add_handlers(handlers_);
  matrices_.add_handlers(handlers_);
  end_.add_handlers(handlers_);
  handlers_.add({ActionKind::kFetch}, [this](const Action& action) { return fetch(action); });
  handlers_.add_prompt({ActionKind::kEvict}, [this](const Action& action) { evict(action); });
}

Executor::~Executor() = default;

bool Executor::is_server() const {
  return options_.layout.server_mode() && options_.layout.owns_optimizer(groups_.rank());
}

StepResult Executor::step(const std::vector<nn::Microbatch>& microbatches, int64_t step, double lr, bool may_pend) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(microbatches.size()), options_.layout.num_microbatches());
  state_ = {.microbatches = &microbatches, .step = step, .lr = lr, .losses = std::vector<at::Tensor>(microbatches.size())};
  if (tensor_) tensor_->take_exposed();  // what layers waited for in an evaluation is not this step's
  end_.begin(may_pend);
  run_list();
  note_waits();
  if (copies_) state_.result.copies = copies_->take_totals();
  if (store_.host() && store_.host()->disk()) state_.result.disk = store_.host()->disk()->take_totals();
  layers_.check_empty();
  state_.microbatches = nullptr;
  state_.result.pending = state_.pends;
  return state_.result;
}

void Executor::run_list() {
  const MemoryScope scope = memory_.scope();
  const std::vector<Action>& actions = program_.list(groups_.rank());
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    try {
      if (options_.before_action) options_.before_action(action, store_);
      if (recorder_) recorder_->begin();
      run(action);
      if (state_.outcome == Outcome::kTakenBack) redo();
      if (recorder_) recorder_->end(i);
    } catch (...) {
      rethrow_out_of_memory(options_.layout, groups_.rank(), describe(action, options_.layout), measured_memory());
    }
    switch (std::exchange(state_.outcome, Outcome::kGoesOn)) {
      case Outcome::kGoesOn:
        break;
      case Outcome::kLeftOut:
        return;
      case Outcome::kTakenBack:
        return run_list();
    }
  }
}

void Executor::run(const Action& action) {
  const program::Effects& effects = (state_.training ? effects_ : evaluation_effects_).of(action);
  joins_.join(effects, action);
  const bool computes = program::computes(action.kind);
  if (recorder_ && computes) recorder_->ready();
  gradients_.open(effects);
  memory_.restart_peak();
  const int64_t before = memory_.live();
  if (Started started = handlers_.run(action)) {
    LOCKSTEP_CHECK(effects.join == program::Join::kAtTouch, program::action_name(action.kind), " goes on behind its end");
    joins_.start(effects, action, std::move(started));
  }
  // What computes has told itself what it leaves behind.
  if (!computes && state_.training) memory_.note_workspace(std::max(before, memory_.live()));
}

// The update of the step before: all from its STEP on.
void Executor::redo() {
  end_.begin_redo();
  const std::vector<Action>& actions = program_.list(groups_.rank());
  const auto first = std::ranges::find_if(actions, program::updates, &Action::kind);
  for (auto action = first; action != actions.end(); ++action) run(*action);
  end_.end_redo();
}

std::optional<StepResult> Executor::settle() {
  if (!end_.pending()) return std::nullopt;
  const MemoryScope scope = memory_.scope();
  const StepResult found = end_.outcome();
  if (found.clip_factor < 1)
    redo();
  else
    end_.accept();
  state_.result = found;
  return found;
}

std::pair<double, int64_t> Executor::evaluate(const nn::Microbatch& microbatch) {
  LOCKSTEP_CHECK(!end_.pending(), "the update of step ", end_.pending_step(), " is not final");
  const MemoryScope scope = memory_.scope();
  const std::vector<nn::Microbatch> one = {microbatch};
  state_.microbatches = &one;
  state_.training = false;
  for (const Action& action : evaluation_.list(groups_.rank())) run(action);
  joins_.join(program::Resource::kSent);
  state_.training = true;
  state_.microbatches = nullptr;
  const at::Tensor loss = layers_.take_output();
  if (!layers_.counts_loss()) return {0, 0};
  return {loss.item<double>(), valid_targets(microbatch)};
}

Started Executor::fetch(const Action& action) {
  switch (action.moved) {
    case program::Moved::kParameters:
      return gather_.fetch(action.unit);
    case program::Moved::kActivation:
      layers_.fetch(action);
      return {};
    case program::Moved::kOptimizer: {
      DiskStates& disk = *store_.host()->disk();
      const size_t unit = store_.unit_of(action.unit);
      disk.fetch(unit);
      return [&disk, unit] { disk.ready(unit); };
    }
  }
  throw InternalError("FETCH of nothing");
}

void Executor::evict(const Action& action) {
  switch (action.moved) {
    case program::Moved::kParameters:
      return gather_.evict(action.unit);
    case program::Moved::kActivation:
      return layers_.evict(action);
    case program::Moved::kOptimizer:
      return store_.host()->disk()->evict(store_.unit_of(action.unit));
  }
}

void Executor::note_waits() {
  std::map<std::string, double> waits = waits_.take();
  if (tensor_)
    for (const auto& [what, seconds] : tensor_->take_exposed()) waits["tp " + what] += seconds;
  for (const auto& [what, seconds] : waits) {
    state_.result.exposed_by[what] += seconds;
    state_.result.exposed_comm_seconds += seconds;
  }
}

void Executor::trace_next_step(std::chrono::steady_clock::time_point start) {
  recorder_ = std::make_unique<StepRecorder>(options_.layout, program_, groups_, waits_, start);
}

plan::StepTrace Executor::take_trace() {
  plan::StepTrace trace = recorder_->finish(state_.step);
  recorder_.reset();
  return trace;
}

}  // namespace lockstep::engine
