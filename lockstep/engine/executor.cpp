#include "lockstep/engine/executor.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/engine/out_of_memory.h"
#include "lockstep/program/passes/build.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::engine {
namespace {

using program::Action;
using program::ActionKind;

std::array<GroupShare, arch::kParameterGroups.size()> shares(const program::Layout& layout, int rank) {
  std::array<GroupShare, arch::kParameterGroups.size()> all;
  for (const arch::ParameterGroup group : arch::kParameterGroups) {
    const program::Domain domain = layout.domain(group);
    all[static_cast<size_t>(group)] = {.shards = layout.shards(group),
                                       .shard = layout.shard(rank, group),
                                       .replica = layout.mesh.group_rank(rank, domain.sum),
                                       .num_replicas = layout.mesh.degree(domain.sum),
                                       .shard_replica = layout.mesh.group_rank(rank, domain.copies),
                                       .num_shard_replicas = layout.mesh.degree(domain.copies)};
  }
  return all;
}

StoreOptions store_options(const ExecutorOptions& options, const Groups& groups, std::shared_ptr<MemoryAccount> memory) {
  const program::Layout& layout = options.layout;
  return {.dtype = scalar_type(layout.precision),
          .device = options.device,
          .owns_optimizer = layout.owns_optimizer(groups.rank()),
          .sole_owner = layout.server_mode(),
          .shares = shares(layout, groups.rank()),
          .sharded_parameters = layout.sharded_parameters(),
          .transient_gradients = layout.transient_gradients(),
          .offload_optimizer = layout.offload.optimizer,
          .offload_parameters = layout.offload.parameters,
          .disk_units = program::host_plan(layout, groups.rank()).disk_units,
          .disk_path = options.disk_path,
          .rank = groups.rank(),
          .tied_copies = layout.tied_peer(groups.rank()) >= 0 ? 2 : 1,
          .tied_copy = layout.holds(groups.rank(), 0) ? 0 : 1,
          .memory = std::move(memory)};
}

std::span<const Action> from_update(std::span<const Action> actions) {
  return actions.subspan(static_cast<size_t>(std::ranges::find_if(actions, program::updates, &Action::kind) - actions.begin()));
}

constexpr Action kValidation{.kind = ActionKind::kValidate};

}  // namespace

Executor::Executor(ExecutorOptions options, Groups& groups)
    : options_(std::move(options)),
      groups_(groups),
      program_(program::build_program(options_.layout)),
      evaluation_(program::evaluation_program(options_.layout)),
      effects_(options_.layout, program_.buckets, groups.rank()),
      calls_(options_.layout, program_, groups.rank()),
      step_{.actions = program_.list(groups.rank()), .observed = true},
      redo_{.actions = from_update(step_.actions)},
      settle_{.actions = std::span(&kValidation, 1)},
      evaluate_{.actions = evaluation_.list(groups.rank())},
      memory_(std::make_shared<MemoryAccount>(options_.layout.device_limit)),
      store_(options_.layout.param_table(groups.rank()), store_options(options_, groups, memory_.account())),
      copies_(options_.layout.offload.optimizer || options_.layout.offload.activations ? std::make_unique<CopyQueue>() : nullptr),
      tensor_(!groups.tensor() ? nullptr
                               : std::make_unique<parallel::TensorGroup>(
                                     *groups.tensor(), parallel::TensorOptions{.sequence_parallel = options_.layout.sequence_parallel,
                                                                               .overlap = options_.layout.overlap})),
      view_{.layout = options_.layout, .state = state_, .store = store_, .groups = groups, .calls = calls_, .waits = waits_},
      gather_(view_, copies_.get()),
      gradients_(view_, program_.buckets),
      layers_(view_, {.memory = memory_,
                      .copies = copies_.get(),
                      .tensor = tensor_.get(),
                      .depth = program_.channel_depth,
                      .seed = options_.seed}),
      matrices_(view_, options_.optimizer),
      end_(view_, {.program = program_, .gradients = gradients_, .layers = layers_, .matrices = matrices_, .joins = joins_},
           {.optimizer = options_.optimizer, .max_grad_norm = options_.max_grad_norm, .skip_nonfinite = options_.skip_nonfinite}) {
  store_.initialize(options_.seed);
  gradients_.watch().mark_by(options_.mark_nonfinite);
  add_handlers();
}

void Executor::add_handlers() {
  layers_.add_handlers(handlers_);
  gather_.add_handlers(handlers_, program_.buckets);
  gradients_.add_handlers(handlers_);
  matrices_.add_handlers(handlers_);
  end_.add_handlers(handlers_);
  using program::Moved;
  handlers_.add({{ActionKind::kFetch, Moved::kParameters}}, [this](const Action& action) { return gather_.fetch(action.unit); });
  handlers_.add_prompt({{ActionKind::kEvict, Moved::kParameters}}, [this](const Action& action) { gather_.evict(action.unit); });
  handlers_.add({{ActionKind::kFetch, Moved::kActivation}}, [this](const Action& action) { return layers_.fetch(action); });
  handlers_.add_prompt({{ActionKind::kEvict, Moved::kActivation}}, [this](const Action& action) { layers_.evict(action); });
  DiskStates* disk = store_.host() ? store_.host()->disk() : nullptr;
  if (disk == nullptr) return;
  handlers_.add({{ActionKind::kFetch, Moved::kOptimizer}}, [this, disk](const Action& action) {
    const size_t unit = store_.unit_of(action.unit);
    disk->fetch(unit);
    return [disk, unit] { disk->ready(unit); };
  });
  handlers_.add_prompt({{ActionKind::kEvict, Moved::kOptimizer}},
                       [this, disk](const Action& action) { disk->evict(store_.unit_of(action.unit)); });
}

Executor::~Executor() = default;

StepResult Executor::step(const std::vector<nn::Microbatch>& microbatches, int64_t step, double lr, bool may_pend) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(microbatches.size()), options_.layout.num_microbatches());
  state_ = {.microbatches = &microbatches, .step = step, .lr = lr, .losses = std::vector<at::Tensor>(microbatches.size())};
  if (tensor_) tensor_->take_exposed();  // what layers waited for in an evaluation is not this step's
  end_.begin(may_pend);
  run(step_);
  note_waits();
  if (copies_) state_.result.copies = copies_->take_totals();
  if (store_.host() && store_.host()->disk()) state_.result.disk = store_.host()->disk()->take_totals();
  layers_.check_empty();
  state_.microbatches = nullptr;
  state_.result.pending = state_.pends;
  return state_.result;
}

// What an action has found says what comes next, on all ranks alike.
void Executor::run(const List& list) {
  const MemoryScope scope = memory_.scope();
  for (size_t i = 0; i < list.actions.size(); ++i) {
    const Action& action = list.actions[i];
    try {
      if (list.observed && options_.before_action) options_.before_action(action, store_);
      if (list.observed && recorder_) recorder_->begin();
      run(action);
    } catch (...) {
      rethrow_out_of_memory(options_.layout, groups_.rank(), doing_text(action, options_.layout), measured_memory());
    }
    const Outcome outcome = std::exchange(state_.outcome, Outcome::kGoesOn);
    if (outcome == Outcome::kTakenBack) {
      end_.begin_redo();
      run(redo_);
      end_.end_redo();
    }
    if (list.observed && recorder_) recorder_->end(i);
    if (outcome == Outcome::kLeftOut) return;
    if (outcome == Outcome::kTakenBack) return run(list);
  }
}

void Executor::run(const Action& action) {
  const program::Effects& effects = effects_.of(action);
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
  if (!state_.training) return;
  // What computes has told itself what it takes beside what it leaves behind.
  if (!computes) memory_.note_workspace(std::max(before, memory_.live()));
  memory_.note_activations();
}

std::optional<StepResult> Executor::settle() {
  if (!end_.pending()) return std::nullopt;
  state_.microbatches = nullptr;  // no other step has begun
  run(settle_);
  const std::optional<StepResult> found = end_.take_validated();
  state_.result = *found;
  return found;
}

std::pair<double, int64_t> Executor::evaluate(const nn::Microbatch& microbatch) {
  LOCKSTEP_CHECK(!end_.pending(), "the update of step ", end_.pending_step(), " is not final");
  const MemoryScope scope = memory_.scope();
  const std::vector<nn::Microbatch> one = {microbatch};
  state_.microbatches = &one;
  state_.training = false;
  run(evaluate_);
  joins_.join(program::Resource::kSent);
  state_.training = true;
  state_.microbatches = nullptr;
  const at::Tensor loss = layers_.take_output();
  if (!layers_.counts_loss()) return {0, 0};
  return {loss.item<double>(), valid_targets(microbatch)};
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
