#include "lockstep/train/verify.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/base/check.h"
#include "lockstep/base/hash.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/engine/executor.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/train/batches.h"
#include "lockstep/train/executor_options.h"
#include "lockstep/train/start.h"

namespace lockstep::train {
namespace {

double largest(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0.0 : tensor.abs().max().item<double>(); }

double relative(double value, double reference) {
  return std::abs(value - reference) / std::max(std::abs(reference), 1e-300);
}

// Rows of the table by the matrix they belong to.
std::map<std::string, std::vector<int>> tensors_of(const std::vector<arch::ParamSpec>& table) {
  std::map<std::string, std::vector<int>> tensors;
  for (size_t row = 0; row < table.size(); ++row)
    tensors[table[row].fuse.empty() ? table[row].name : table[row].fuse].push_back(static_cast<int>(row));
  return tensors;
}

template <typename Get>
at::Tensor joined(const std::vector<int>& rows, Get get) {
  std::vector<at::Tensor> parts;
  for (const int row : rows) parts.push_back(get(row).flatten().to(at::kDouble));
  return at::cat(parts);
}

// What a layout's ranks hold of every parameter, put together: [row of the model's table], on rank 0.
struct Whole {
  std::vector<at::Tensor> gradients, values;
};

// From the stage that holds the parameter to all ranks, if there are several stages. `mine`: undefined where it is not held.
at::Tensor from_stage(const engine::Executor& executor, engine::Groups& groups, const arch::ParamSpec& spec, at::Tensor mine) {
  const program::Layout& layout = executor.layout();
  if (layout.pipeline.ranks == 1) return mine;
  const int root = layout.rank_at(0, layout.pipeline.stage_of(spec.layer));
  const at::Tensor whole = mine.defined() ? mine.to(at::kFloat).cpu().contiguous() : at::empty(spec.shape, at::kFloat);
  groups.world().broadcast(whole, root, {.site = "whole " + spec.name}).wait();
  return whole;
}

// Collective over the world.
Whole collect(engine::Executor& executor, engine::Groups& groups, bool keep) {
  Whole whole;
  const std::vector<arch::ParamSpec>& table = executor.store().table();
  for (const arch::ParamSpec& spec : arch::param_table(executor.layout().model)) {
    const auto here = std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.name == spec.name; });
    const int row = here == table.end() ? -1 : static_cast<int>(here - table.begin());
    const at::Tensor gradient = from_stage(executor, groups, spec, row < 0 ? at::Tensor() : executor.whole_gradient(row));
    const at::Tensor value = from_stage(executor, groups, spec, row < 0 ? at::Tensor() : executor.whole_value(row));
    if (!keep) continue;
    whole.gradients.push_back(gradient);
    whole.values.push_back(value);
  }
  return whole;
}

void compare_gradients(const Whole& layout, engine::Executor& twin, VerifyStep& step) {
  for (const auto& [name, rows] : tensors_of(twin.store().table())) {
    const at::Tensor actual = joined(rows, [&](int row) { return layout.gradients[static_cast<size_t>(row)]; });
    const at::Tensor expected = joined(rows, [&](int row) { return twin.whole_gradient(row); });
    const double scale = largest(expected), difference = largest(at::sub(actual, expected));
    const double error = scale > 0 ? difference / scale : (difference > 0 ? INFINITY : 0.0);
    if (!(error <= step.max_gradient_error) || step.worst_gradient.empty()) {
      step.max_gradient_error = error;
      step.worst_gradient = name;
    }
  }
}

// The error in learning rates where the gradient stands out of its rounding noise, and everywhere.
struct ParameterError {
  double judged = 0;
  double anywhere = 0;
};

ParameterError parameter_error(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& gradient, double lr,
                               double noise_floor) {
  const at::Tensor difference = at::sub(actual, expected).abs();
  const at::Tensor judged = gradient.abs().ge(noise_floor * largest(gradient));
  return {largest(at::where(judged, difference, at::zeros_like(difference))) / lr, largest(difference) / lr};
}

void compare_parameters(const Whole& layout, engine::Executor& twin, double lr, const Tolerances& tolerances,
                        VerifyStep& step) {
  for (const auto& [name, rows] : tensors_of(twin.store().table())) {
    const ParameterError error = parameter_error(joined(rows, [&](int row) { return layout.values[static_cast<size_t>(row)]; }),
                                                 joined(rows, [&](int row) { return twin.store().value(row); }),
                                                 joined(rows, [&](int row) { return twin.whole_gradient(row); }), lr,
                                                 tolerances.noise_floor);
    if (!(error.judged <= step.max_parameter_error) || step.worst_parameter.empty()) {
      step.max_parameter_error = error.judged;
      step.worst_parameter = name;
    }
    constexpr double bound = 2.001;
    if (!(error.anywhere <= bound))
      step.failures.push_back(cat(name, " moved ", error.anywhere, " learning rates apart, more than ", bound));
  }
}

void judge(const Tolerances& tolerances, VerifyStep& step) {
  const auto bound = [&](const std::string& what, double error, double tolerance) {
    if (!(error <= tolerance)) step.failures.push_back(cat(what, ": error ", error, " is above ", tolerance));
  };
  bound("loss", relative(step.loss, step.reference_loss), tolerances.loss);
  bound("gradient norm", relative(step.grad_norm, step.reference_grad_norm), tolerances.grad_norm);
  bound(cat("gradient of ", step.worst_gradient), step.max_gradient_error, tolerances.gradient);
  bound(cat("parameter ", step.worst_parameter), step.max_parameter_error, tolerances.parameter);
}

// True where every rank of the group holds the same bits; null = a group of one.
bool same_bits(const std::vector<at::Tensor>& values, comm::Communicator* group) {
  if (group == nullptr || group->size() == 1) return true;
  Hasher hasher;
  for (const at::Tensor& value : values) {
    const at::Tensor bytes = value.cpu().contiguous();
    hasher.update(bytes.const_data_ptr(), bytes.nbytes());
  }
  const auto hash = static_cast<int64_t>(hasher.hash());
  const at::Tensor mine = at::tensor({hash}, at::kLong), all = at::empty({group->size()}, at::kLong);
  group->all_gather(mine, all, {.site = "replica hash"}).wait();
  return all.eq(hash).all().item<bool>();
}

// Copies are the same to the bit: parameters that every data-parallel rank has whole, over all of them; parts, over the
// ranks that hold the same part; over tp what is not cut; over pp what two stages hold.
bool replicas_agree(engine::Executor& executor, engine::Groups& groups) {
  const program::Layout& layout = executor.layout();
  const bool whole_parameters = layout.shards() == 1 || !layout.transient_parameters();
  std::map<std::string, const arch::ParamSpec*> specs;
  for (const arch::ParamSpec& spec : executor.store().table()) specs[spec.name] = &spec;
  std::vector<at::Tensor> whole, parts, uncut, shared, tied;
  for (const engine::StateTensor& tensor : executor.store().state()) {
    const bool is_whole = tensor.kind == engine::StateKind::kParameter && whole_parameters;
    // Only the parameter server has moments.
    if (is_whole || !layout.server_mode()) (is_whole ? whole : parts).push_back(tensor.local);
    const arch::ParamSpec& spec = *specs.at(tensor.name);
    if (groups.tied() && spec.layer == 0) tied.push_back(tensor.local);
    if (spec.copies > 1) (spec.cut == arch::TensorCut::kNone ? uncut : shared).push_back(tensor.local);
  }
  bool agree = same_bits(whole, &groups.data());
  agree = same_bits(parts, layout.server_mode() ? nullptr : groups.replicas()) && agree;
  agree = same_bits(uncut, groups.tensor()) && agree;
  agree = same_bits(tied, groups.tied()) && agree;
  return same_bits(shared, groups.shared_heads()) && agree;
}

// The piece of a whole parameter that `tensor` holds.
at::Tensor piece_of(at::Tensor whole, const engine::StateTensor& tensor) {
  for (size_t dim = 0; dim < tensor.offset.size(); ++dim)
    whole = whole.narrow(static_cast<int64_t>(dim), tensor.offset[dim], tensor.local.size(static_cast<int64_t>(dim)));
  return whole;
}

// Gives every rank its pieces of the twin's parameters and optimizer state, which rank 0 has. Collective.
void adopt(engine::Executor& executor, engine::Executor* twin, engine::Groups& groups) {
  using engine::StateKind;
  using Key = std::pair<std::string, StateKind>;
  std::map<Key, std::vector<engine::StateTensor>> mine;  // none of what is another rank's, several of what a cut falls into
  std::map<Key, at::Tensor> source;
  for (engine::StateTensor& tensor : executor.store().state()) mine[{tensor.name, tensor.kind}].push_back(tensor);
  if (twin)
    for (engine::StateTensor& tensor : twin->store().state()) source[{tensor.name, tensor.kind}] = tensor.local;
  const bool masters = executor.compute_dtype() != at::kFloat;  // of the twin
  for (const arch::ParamSpec& spec : arch::param_table(executor.layout().model))
    for (const StateKind kind : {masters ? StateKind::kMaster : StateKind::kParameter, StateKind::kExpAvg, StateKind::kExpAvgSq}) {
      const at::Tensor whole = twin ? source.at({spec.name, kind}).to(at::kFloat).cpu().contiguous()
                                    : at::empty(spec.shape, at::kFloat);
      groups.world().broadcast(whole, 0, {.site = "the twin's state"}).wait();
      const auto give = [&](StateKind to) {
        for (const engine::StateTensor& tensor : mine[{spec.name, to}]) tensor.local.copy_(piece_of(whole, tensor));
      };
      const bool value = kind == StateKind::kMaster || kind == StateKind::kParameter;
      give(value ? StateKind::kParameter : kind);
      if (value) give(StateKind::kMaster);
    }
  executor.store().loaded();
}

}  // namespace

Tolerances tolerances_of(const program::Layout& layout) {
  // Each rank's gradient is rounded to 8 bits before it is sent.
  const bool rounded = layout.reduce_precision == config::Precision::kBf16 && layout.shards() > 1;
  if (layout.precision == config::Precision::kFp32)
    return rounded ? Tolerances{.grad_norm = 1e-2, .gradient = 1e-2, .parameter = 1.0, .noise_floor = 0.1} : Tolerances{};
  // bf16 keeps 8 bits: another split of the batch rounds other partial sums.
  return {.loss = 1e-3, .grad_norm = 1e-2, .gradient = 5e-2, .parameter = 1.0, .noise_floor = 0.1};
}

VerifyReport verify(const config::RunConfig& config, const program::Layout& layout, comm::World& world, int64_t steps) {
  const at::Device device = device_of(config);
  engine::Groups groups(world, layout);
  engine::Executor executor(executor_options(config, layout), groups);

  std::unique_ptr<comm::World> solo;
  std::unique_ptr<engine::Groups> twin_groups;
  std::unique_ptr<engine::Executor> twin;
  const program::Layout one_rank = program::reference_layout(layout);
  if (world.rank() == 0) {
    solo = std::make_unique<comm::SharedMemoryWorld>(
        std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(1))), 0, 1);
    twin_groups = std::make_unique<engine::Groups>(*solo, one_rank);
    twin = std::make_unique<engine::Executor>(executor_options(config, one_rank), *twin_groups);
  }

  load_start_values(config, executor);
  if (twin) load_start_values(config, *twin);
  const data::Sampler sampler = open_training_data(config, layout);
  VerifyReport report{.world_size = world.size(), .layout = program::describe(layout),
                      .tolerances = tolerances_of(layout)};
  for (int64_t index = 0; index < steps; ++index) {
    const double lr = optim::learning_rate(config.optimizer, index, config.train.steps);
    const StepPosition position{.step = index, .first_sample = index * layout.global_batch};
    VerifyStep step;
    const engine::StepResult result =
        executor.step(load_step(sampler, layout, world.rank(), position, device), index + 1, lr);
    const bool agree = replicas_agree(executor, groups);
    if (!agree) step.failures.emplace_back("the replicas' parameters differ");
    const Whole whole = collect(executor, groups, twin != nullptr);
    if (twin) {
      const engine::StepResult reference = twin->step(load_step(sampler, one_rank, 0, position, device), index + 1, lr);
      step.loss = result.loss;
      step.reference_loss = reference.loss;
      step.grad_norm = result.grad_norm;
      step.reference_grad_norm = reference.grad_norm;
      compare_gradients(whole, *twin, step);
      compare_parameters(whole, *twin, lr, report.tolerances, step);
      judge(report.tolerances, step);
    }
    if (index + 1 < steps) adopt(executor, twin.get(), groups);
    report.ok = report.ok && step.failures.empty();
    report.steps.push_back(std::move(step));
  }
  const at::Tensor failed = at::tensor({report.ok ? int64_t{0} : int64_t{1}}, at::kLong);
  groups.world().all_reduce(failed, {.site = "verdict", .algorithm = program::Algorithm::kDirect, .op = comm::ReduceOp::kMax})
      .wait();
  report.ok = failed.item<int64_t>() == 0;
  return report;
}

}  // namespace lockstep::train
