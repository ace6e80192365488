#include "lockstep/engine/executor.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/model/model.h"
#include "lockstep/optim/adamw.h"

namespace lockstep::engine {
namespace {

using program::Action;
using program::ActionKind;
using program::Algorithm;

// Activations and workspace share one counter while a step runs: note_memory tells them apart at the borders of actions.
constexpr MemoryCategory kStepMemory = MemoryCategory::kActivations;

StoreOptions store_options(const ExecutorOptions& options, const Groups& groups, std::shared_ptr<MemoryAccount> memory) {
  const program::Layout& layout = options.layout;
  return {.dtype = layout.precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat,
          .device = options.device,
          .owns_optimizer = layout.owns_optimizer(groups.rank()),
          .sole_owner = layout.server_mode(),
          .replica = layout.mesh.group_rank(groups.rank(), mesh::kDataAxes),
          .num_replicas = layout.mesh.degree(mesh::kDataAxes),
          .memory = std::move(memory)};
}

std::unique_ptr<parallel::TensorGroup> tensor_group(const program::Layout& layout, Groups& groups) {
  if (!groups.tensor()) return nullptr;
  return std::make_unique<parallel::TensorGroup>(
      *groups.tensor(),
      parallel::TensorOptions{.sequence_parallel = layout.sequence_parallel, .overlap = layout.overlap});
}

std::string site(const char* what, int bucket) { return cat(what, " bucket ", bucket); }

}  // namespace

Executor::Executor(ExecutorOptions options, Groups& groups)
    : options_(std::move(options)),
      groups_(groups),
      program_(program::build_program(options_.layout)),
      memory_(std::make_shared<MemoryAccount>()),
      store_(options_.layout.param_table(groups.rank()), store_options(options_, groups, memory_)),
      tensor_(tensor_group(options_.layout, groups)),
      layers_(model::build_layers(options_.layout.model, store_,
                                  {.seed = options_.seed, .training = true, .tensor = tensor_.get()})),
      evaluation_layers_(model::build_layers(options_.layout.model, store_,
                                             {.seed = options_.seed, .training = false, .tensor = tensor_.get()})) {
  store_.initialize(options_.seed);
}

Executor::~Executor() = default;

bool Executor::is_server() const {
  return options_.layout.server_mode() && options_.layout.owns_optimizer(groups_.rank());
}

StepResult Executor::step(const std::vector<nn::Microbatch>& microbatches, int64_t step, double lr) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(microbatches.size()), options_.layout.num_microbatches());
  microbatches_ = &microbatches;
  step_ = step;
  lr_ = lr;
  result_ = {};
  if (tensor_) tensor_->take_exposed();  // what layers waited for in an evaluation is not this step's
  bad_param_ = -1;
  losses_.assign(microbatches.size(), at::Tensor());
  store_.zero_grad();
  {
    const MemoryScope scope(memory_, kStepMemory);
    for (const Action& action : program_.ranks.at(static_cast<size_t>(groups_.rank()))) {
      if (options_.before_action) options_.before_action(action, store_);
      run(action);
      if (!result_.skipped.empty()) break;  // on all ranks after the same action: none waits for the rest of the list
    }
  }
  wait_for_parameters();
  note_layers();
  LOCKSTEP_CHECK(saved_.empty() && flowing_.empty(), "activations left after the last action");
  microbatches_ = nullptr;
  return result_;
}

void Executor::run(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      return backward(action);
    case ActionKind::kReduceGrad:
    case ActionKind::kPush:
      return start_reduce(action);
    case ActionKind::kLoss:
      return reduce_loss();
    case ActionKind::kReducePartial:
      return reduce_partial();
    case ActionKind::kNorm:
      return norm();
    case ActionKind::kStep:
      return update();
    case ActionKind::kPull:
      return start_pull(action);
    default:
      break;
  }
  LOCKSTEP_CHECK(false, "no handler for ", program::action_name(action.kind));
}

void Executor::forward(const Action& action) {
  const nn::Microbatch& microbatch = microbatches_->at(static_cast<size_t>(action.microbatch));
  memory_->restart_peak(kStepMemory);
  std::unique_ptr<nn::Saved> saved;
  at::Tensor output =
      layers_[static_cast<size_t>(action.layer)]->forward(flowing_[action.microbatch], microbatch, &saved);
  note_workspace(memory_->live(kStepMemory));
  saved_[{action.layer, action.microbatch}] = std::move(saved);
  if (action.layer + 1 == static_cast<int>(layers_.size())) {
    losses_[static_cast<size_t>(action.microbatch)] = output;
    output = at::Tensor();  // the gradient of the loss by itself is 1: nothing flows back into the head
  }
  flowing_[action.microbatch] = std::move(output);
  note_activations();
}

void Executor::backward(const Action& action) {
  const auto saved = saved_.find({action.layer, action.microbatch});
  LOCKSTEP_CHECK(saved != saved_.end(), "layer ", action.layer, " kept nothing for microbatch ", action.microbatch);
  nn::Layer& layer = *layers_[static_cast<size_t>(action.layer)];
  memory_->restart_peak(kStepMemory);
  int64_t baseline = memory_->live(kStepMemory);
  const at::Tensor& dy = flowing_[action.microbatch];
  at::Tensor dx;
  if (action.kind == ActionKind::kBackward) dx = layer.backward(dy, *saved->second);
  if (action.kind == ActionKind::kBackwardInput) dx = layer.backward_input(dy, *saved->second);
  if (action.kind == ActionKind::kBackwardWeight) layer.backward_weight(*saved->second);
  if (action.kind != ActionKind::kBackwardWeight) {
    if (dx.defined()) {
      baseline += static_cast<int64_t>(dx.nbytes());
      flowing_[action.microbatch] = std::move(dx);
    } else {
      flowing_.erase(action.microbatch);
    }
  }
  if (action.kind != ActionKind::kBackwardInput) saved_.erase(saved);
  note_workspace(baseline);
  note_activations();
}

void Executor::start_reduce(const Action& action) {
  const program::Bucket& bucket = program_.buckets.at(static_cast<size_t>(action.bucket));
  // Before the reduction: afterwards every rank has the same non-finite sum, and nobody knows whose it was.
  check_finite(bucket.begin, bucket.end);
  const at::Tensor gradients = store_.grad_slice(bucket.begin, bucket.end);
  if (action.kind == ActionKind::kPush)
    reductions_.push_back(groups_.data().reduce(gradients, program::kServerRank,
                                                {.site = site("push", action.bucket), .algorithm = Algorithm::kDirect}));
  else
    reductions_.push_back(groups_.data().all_reduce(
        gradients, {.site = site("reduce_grad", action.bucket), .algorithm = Algorithm::kRing}));
}

void Executor::start_pull(const Action& action) {
  const program::Bucket& bucket = program_.buckets.at(static_cast<size_t>(action.bucket));
  pulls_.push_back(groups_.data().broadcast(store_.compute_slice(bucket.begin, bucket.end), program::kServerRank,
                                            {.site = site("pull", action.bucket), .algorithm = Algorithm::kDirect}));
}

void Executor::wait(comm::Work& work, const char* what) {
  work.wait();
  result_.exposed_by[what] += work.exposed_seconds();
  result_.exposed_comm_seconds += work.exposed_seconds();
}

// What the sharded layers waited for.
void Executor::note_layers() {
  if (!tensor_) return;
  for (const auto& [what, seconds] : tensor_->take_exposed()) {
    result_.exposed_by["tp " + what] += seconds;
    result_.exposed_comm_seconds += seconds;
  }
}

void Executor::wait_for_gradients() {
  for (comm::Work& work : reductions_) wait(work, "dp gradients");
  reductions_.clear();
}

void Executor::wait_for_parameters() {
  for (comm::Work& work : pulls_) wait(work, "dp parameters");
  pulls_.clear();
}

void Executor::reduce_loss() {
  double loss = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < losses_.size(); ++i) {
    loss += losses_[i].item<double>();
    tokens += microbatches_->at(i).targets.ge(0).sum().item<int64_t>();
  }
  // Every rank of a tp group has the whole loss of its samples: the first one counts.
  const double counts = tensor_ && tensor_->rank() > 0 ? 0 : 1;
  const at::Tensor sums =
      at::tensor({counts * loss, counts * static_cast<double>(tokens), bad_param_ >= 0 ? 1.0 : 0.0}, at::kDouble);
  comm::Work work = groups_.replica().all_reduce(sums, {.site = "loss", .algorithm = Algorithm::kDirect});
  wait(work, "loss");
  const double* values = sums.const_data_ptr<double>();
  if (values[2] > 0) return nonfinite();
  result_.tokens = std::llround(values[1]);
  LOCKSTEP_CHECK(result_.tokens > 0, "a step without a single valid target");
  result_.loss = values[0] / values[1];
}

// Gradients that are this rank's part of a sum become whole, over the tp axis and among the ranks that share heads.
void Executor::reduce_partial() {
  wait_for_gradients();
  sum_over(groups_.tensor(), false);
  if (groups_.shared_heads()) sum_over(groups_.shared_heads(), true);
}

// They lie scattered in the flat buffer and are small: they travel together in a copy.
void Executor::sum_over(comm::Communicator* group, bool shared_heads) {
  std::vector<at::Tensor> gradients, flat;
  for (size_t param = 0; param < store_.table().size(); ++param) {
    const arch::ParamSpec& spec = store_.table()[param];
    if (!spec.partial || (spec.cut != arch::TensorCut::kNone) != shared_heads) continue;
    gradients.push_back(store_.grad(static_cast<int>(param)));
    flat.push_back(gradients.back().flatten());
  }
  if (gradients.empty()) return;
  const at::Tensor together = at::cat(flat);
  comm::Work work = group->all_reduce(together, {.site = "reduce_partial", .algorithm = Algorithm::kRing});
  wait(work, "tp gradients");
  int64_t offset = 0;
  for (at::Tensor& gradient : gradients) {
    gradient.copy_(together.narrow(0, offset, gradient.numel()).view_as(gradient));
    offset += gradient.numel();
  }
}

// Over all parameters, each counted once: a piece that several ranks hold by the first of them.
double Executor::whole_norm() {
  std::vector<at::Tensor> gradients;
  for (size_t param = 0; param < store_.table().size(); ++param)
    if (store_.table()[param].copy == 0) gradients.push_back(store_.grad(static_cast<int>(param)));
  const double here = optim::gradient_norm(gradients);
  if (!tensor_) return here;
  const at::Tensor square = at::full({1}, here * here, at::kDouble);
  comm::Work work = groups_.tensor()->all_reduce(square, {.site = "norm", .algorithm = Algorithm::kDirect});
  wait(work, "norm");
  return std::sqrt(square.item<double>());
}

// The one division by the global token count, and the clipping.
void Executor::norm() {
  wait_for_gradients();
  const at::Tensor norm = at::zeros({1}, at::kDouble);
  if (options_.layout.owns_optimizer(groups_.rank())) norm.fill_(whole_norm());
  if (options_.layout.server_mode()) {
    comm::Work work = groups_.data().broadcast(norm, program::kServerRank,
                                               {.site = "norm", .algorithm = Algorithm::kDirect});
    wait(work, "norm");
  }
  const double tokens = static_cast<double>(result_.tokens);
  result_.grad_norm = norm.item<double>() / tokens;
  if (!std::isfinite(result_.grad_norm)) {
    check_finite(0, store_.layout().numel);
    return nonfinite();
  }
  result_.clip_factor = optim::clip_factor(result_.grad_norm, options_.max_grad_norm);
  gradient_scale_ = result_.clip_factor / tokens;
}

void Executor::update() {
  optim::adamw_step(store_.adamw_parameters(), options_.adamw, lr_, step_, gradient_scale_);
}

void Executor::check_finite(int64_t begin, int64_t end) {
  if (bad_param_ >= 0) return;
  // A sum is finite only if every term is (or it overflows, which is no better).
  if (std::isfinite(store_.grad_slice(begin, end).sum().item<double>())) return;
  for (const arch::FlatUnit& unit : store_.layout().units)
    for (const arch::FlatSlot& slot : unit.slots)
      if (slot.offset >= begin && slot.offset < end &&
          !std::isfinite(store_.grad(slot.param).sum().item<double>())) {
        bad_param_ = slot.param;
        return;
      }
}

void Executor::nonfinite() {
  // Reductions in flight end first: every rank comes here in the same step.
  wait_for_gradients();
  flowing_.clear();
  saved_.clear();
  comm::Communicator& replica = groups_.replica();
  const at::Tensor mine = at::tensor({static_cast<int64_t>(bad_param_)}, at::kLong);
  const at::Tensor all = at::empty({replica.size()}, at::kLong);
  replica.all_gather(mine, all, {.site = "non-finite"}).wait();
  const int64_t* params = all.const_data_ptr<int64_t>();
  std::vector<std::string> culprits;
  for (int rank = 0; rank < replica.size(); ++rank)
    if (params[rank] >= 0)
      culprits.push_back(cat("rank ", rank, ": ", store_.table()[static_cast<size_t>(params[rank])].name));
  const std::string whose = culprits.empty() ? "their norm overflows" : join(culprits, ", ");
  if (options_.skip_nonfinite) {
    result_.skipped = whose;
    return;
  }
  throw DivergedError({.code = "LS5001",
                       .what = cat("step ", step_, ": a gradient is not finite (", whose, ")"),
                       .way_out = "the weights are those before this step; try a lower optimizer.lr, a longer warm-up, "
                                  "precision = \"fp32\", or train.nonfinite = \"skip\""});
}

// What an action took beyond `baseline`: what lived before it and what it leaves behind.
void Executor::note_workspace(int64_t baseline) {
  int64_t& buffers = measured_[MemoryCategory::kBuffers];
  buffers = std::max(buffers, memory_->peak(kStepMemory) - baseline);
}

void Executor::note_activations() {
  int64_t& activations = measured_[MemoryCategory::kActivations];
  activations = std::max(activations, memory_->live(kStepMemory));
}

program::MemoryBytes Executor::measured_memory() const {
  program::MemoryBytes bytes = measured_;
  for (const MemoryCategory category :
       {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kOptimizer})
    bytes[category] = memory_->live(category);
  return bytes;
}

std::pair<double, int64_t> Executor::evaluate(const nn::Microbatch& microbatch) {
  at::Tensor x;
  for (const auto& layer : evaluation_layers_) x = layer->forward(x, microbatch, nullptr);
  return {x.item<double>(), microbatch.targets.ge(0).sum().item<int64_t>()};
}

at::Tensor Executor::whole(int param, const at::Tensor& piece) {
  const arch::ParamSpec& spec = store_.table().at(static_cast<size_t>(param));
  const auto placement = spec.placements.find(mesh::Axis::kTp);
  if (!tensor_ || placement == spec.placements.end()) return piece;
  const at::Tensor mine = at::zeros({spec.largest_numel}, piece.options());
  mine.narrow(0, 0, piece.numel()).copy_(piece.flatten());
  const at::Tensor all = at::empty({tensor_->size(), spec.largest_numel}, piece.options());
  groups_.tensor()->all_gather(mine, all, {.site = "whole " + spec.name}).wait();
  const int dim = placement->second.dim(), copies = spec.copies;
  const int parts = tensor_->size() / copies;
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

at::Tensor Executor::gradient(int param) const { return store_.grad(param).div(result_.clip_factor); }

}  // namespace lockstep::engine
