#include "lockstep/engine/executor.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lockstep/arch/expert_branch.h"
#include "lockstep/base/check.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::engine {
namespace {

using program::Action;
using program::ActionKind;

std::span<const Action> from_update(std::span<const Action> actions) {
  return actions.subspan(static_cast<size_t>(std::ranges::find_if(actions, program::updates, &Action::kind) - actions.begin()));
}

// `all`: the pieces of ranks, each as long as the largest, [ranks, largest_numel]; of those that hold the same one the first counts.
at::Tensor side_by_side(const arch::ParamSpec& spec, const at::Tensor& all) {
  const int dim = spec.cut_dim, copies = spec.copies;
  const int parts = static_cast<int>(all.size(0)) / copies;
  std::vector<at::Tensor> pieces;
  for (int part = 0; part < parts; ++part) {
    std::vector<int64_t> shape = spec.shape;
    int64_t& length = shape[static_cast<size_t>(dim)];
    length = mesh::shard_range(length, parts, part).size();
    pieces.push_back(all.select(0, part * copies).narrow(0, 0, spec.numel() / spec.shape[static_cast<size_t>(dim)] * length)
                         .view(shape));
  }
  return at::cat(pieces, dim);
}

// What messages and rooms are at most follows from the largest microbatch, and so fits those of an evaluation.
parallel::DispatchOptions dispatch_of(const program::Layout& layout, Groups& groups) {
  const arch::ExpertRows rows(layout.model, layout.cost_input(0));
  return {.overlap = layout.overlap,
          .dispatcher = layout.dispatcher,
          .nodes = groups.expert_nodes(),
          .node = groups.expert_node(),
          .limit = rows.limit,
          .slots = rows.slots};
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
      store_(options_.layout.param_table(groups.rank()), {.layout = options_.layout,
                                                          .rank = groups.rank(),
                                                          .device = options_.device,
                                                          .disk_path = options_.disk_path,
                                                          .memory = memory_.account()}),
      copies_(options_.layout.offload.optimizer || options_.layout.offload.activations ? std::make_unique<CopyQueue>() : nullptr),
      tensor_(!groups.tensor() ? nullptr
                               : std::make_unique<parallel::TensorGroup>(
                                     *groups.tensor(), parallel::TensorOptions{.sequence_parallel = options_.layout.sequence_parallel,
                                                                               .overlap = options_.layout.overlap})),
      experts_(!groups.experts() ? nullptr
                                 : std::make_unique<parallel::ExpertGroup>(*groups.experts(), options_.layout.ep, options_.layout.etp,
                                                                           dispatch_of(options_.layout, groups))),
      context_(!groups.context() ? nullptr
                                 : std::make_unique<parallel::ContextGroup>(
                                       *groups.context(), parallel::ContextOptions{.kind = options_.layout.context,
                                                                                   .inner = groups.context_inner(),
                                                                                   .outer = groups.context_outer(),
                                                                                   .overlap = options_.layout.overlap,
                                                                                   .split = options_.layout.context_split,
                                                                                   .documents = options_.layout.context_shard().documents})),
      view_{.options = options_, .layout = options_.layout, .state = state_, .store = store_, .groups = groups, .calls = calls_, .waits = waits_},
      gather_(view_, copies_.get()),
      gradients_(view_, program_.buckets),
      layers_(view_, {.memory = memory_,
                      .copies = copies_.get(),
                      .tensor = tensor_.get(),
                      .experts = experts_.get(),
                      .context = context_.get(),
                      .depth = program_.channel_depth}),
      matrices_(view_),
      end_(view_, {.program = program_, .gradients = gradients_, .layers = layers_, .matrices = matrices_, .joins = joins_}) {
  store_.initialize(options_.seed);
  layers_.add_handlers(handlers_);
  gather_.add_handlers(handlers_, program_.buckets);
  gradients_.add_handlers(handlers_);
  matrices_.add_handlers(handlers_);
  end_.add_handlers(handlers_);
  using program::Moved;
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

StepResult Executor::step(const std::vector<nn::Microbatch>& microbatches, int64_t step, double lr, bool may_pend) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(microbatches.size()), options_.layout.num_microbatches());
  state_ = {.microbatches = &microbatches, .step = step, .lr = lr, .losses = std::vector<at::Tensor>(microbatches.size())};
  take_exposed_of_layers();  // what they waited for in an evaluation is not this step's
  end_.begin(may_pend);
  run(step_);
  std::map<std::string, double>& waits = state_.result.exposed_by = waits_.take();
  for (const auto& [what, seconds] : take_exposed_of_layers()) waits[what] += seconds;
  for (const auto& [what, seconds] : waits) state_.result.exposed_comm_seconds += seconds;
  if (copies_) state_.result.copies = copies_->take_totals();
  if (store_.host() && store_.host()->disk()) state_.result.disk = store_.host()->disk()->take_totals();
  layers_.check_empty();
  state_.microbatches = nullptr;
  state_.result.pending = state_.pends;
  if (options_.layout.moe.scope == config::MoeScope::kLastStep && state_.result.skipped.empty()) {
    LOCKSTEP_CHECK(!state_.pends, "the next step goes by the loads of one that is pending");
    set_last_loads(state_.result.loads);
  }
  return state_.result;
}

void Executor::set_last_loads(std::vector<double> loads) {
  LOCKSTEP_CHECK(loads.empty() || std::ssize(loads) == options_.layout.load_numbers(), loads.size(), " loads");
  last_loads_ = std::move(loads);
  layers_.set_last_loads(last_loads_);
}

std::map<std::string, double> Executor::take_exposed_of_layers() {
  std::map<std::string, double> waits;
  if (tensor_)
    for (const auto& [what, seconds] : tensor_->take_exposed()) waits["tp " + what] += seconds;
  if (experts_)
    for (const auto& [what, seconds] : experts_->take_exposed()) waits["ep " + what] += seconds;
  if (context_)
    for (const auto& [what, seconds] : context_->take_exposed()) waits["cp " + what] += seconds;
  return waits;
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
    if (outcome == Outcome::kTakenBack) end_.redo([this] { run(redo_); });
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

void Executor::trace_next_step(std::chrono::steady_clock::time_point start) {
  recorder_ = std::make_unique<StepRecorder>(view_, program_, start);
}

plan::StepTrace Executor::take_trace() {
  return std::exchange(recorder_, nullptr)->finish();
}

ParameterStore& Executor::store() {
  LOCKSTEP_CHECK(!end_.pending(), "the update of step ", end_.pending_step(), " is not final");
  joins_.join(program::Resource::kParameters);
  return store_;
}

// `part`: this rank's part of the parameter's unit.
at::Tensor Executor::whole(int param, const at::Tensor& part) {
  const arch::ParamSpec& spec = store_.table().at(static_cast<size_t>(param));
  const arch::FlatUnit& unit = store_.layout().units[store_.unit_of(spec.unit)];
  at::Tensor all = part;
  if (comm::Communicator* sharing = groups_.several(options_.layout.domain(unit.group).shard)) {
    all = at::empty({unit.numel()}, part.options());
    sharing->all_gather(part, all, {.id = program::call_of_parameter(spec.name)}).wait();
  }
  for (const arch::FlatSlot& slot : unit.slots)
    if (slot.param == param) all = all.narrow(0, slot.offset - unit.begin, slot.numel).view(spec.local_shape);
  return whole_of_pieces(spec, all);
}

// Over tp, or of experts over etp: their members of one group stand beside each other, those of all experts have it in common.
at::Tensor Executor::whole_of_pieces(const arch::ParamSpec& spec, const at::Tensor& piece) {
  if (spec.cut_dim < 0) return piece;
  const bool expert = spec.group == arch::ParameterGroup::kExperts;
  comm::Communicator& ranks = expert ? *groups_.experts() : *groups_.tensor();
  const at::Tensor mine = at::zeros({spec.largest_numel}, piece.options());
  mine.narrow(0, 0, piece.numel()).copy_(piece.flatten());
  const at::Tensor all = at::empty({ranks.size(), spec.largest_numel}, piece.options());
  // Ranks of other experts name other parameters.
  const program::CallId id = expert ? program::call_id(program::Purpose::kWholeParameter) : program::call_of_parameter(spec.name);
  ranks.all_gather(mine, all, {.id = id}).wait();
  return side_by_side(spec, expert ? all.narrow(0, experts_->ep_rank() * experts_->etp(), experts_->etp()) : all);
}

at::Tensor Executor::whole_gradient(int param) {
  const size_t unit = store_.unit_of(store_.table().at(static_cast<size_t>(param)).unit);
  return whole(param, store_.grad_part(unit)).div(static_cast<double>(state_.result.tokens));
}

at::Tensor Executor::whole_value(int param) { return whole_state(param, StateKind::kMaster); }

at::Tensor Executor::whole_state(int param, StateKind kind) {
  joins_.join(program::Resource::kParameters);
  return whole(param, store_.state_part(store_.unit_of(store_.table().at(static_cast<size_t>(param)).unit), kind));
}

}  // namespace lockstep::engine
