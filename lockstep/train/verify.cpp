#include "lockstep/train/verify.h"

#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "lockstep/arch/params.h"
#include "lockstep/base/check.h"
#include "lockstep/engine/replicas.h"
#include "lockstep/nn/experts.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/batches.h"
#include "lockstep/train/executor_options.h"
#include "lockstep/train/start.h"
#include "lockstep/train/verify_compare.h"
#include "lockstep/train/verify_drift.h"
#include "lockstep/train/verify_traffic.h"
#include "lockstep/train/verify_twin.h"
#include "lockstep/train/verify_update.h"

namespace lockstep::train {
namespace {

double relative(double value, double reference) {
  return std::abs(value - reference) / std::max(std::abs(reference), 1e-300);
}

void bound(const std::string& what, double error, double tolerance, VerifyStep& step) {
  if (!(error <= tolerance)) step.failures.push_back(cat(what, ": error ", error, " is above ", tolerance));
}

void judge_against_twin(const Tolerances& tolerances, VerifyStep& step) {
  bound("loss", relative(step.loss, step.reference_loss), tolerances.loss, step);
  bound("gradient norm", relative(step.grad_norm, step.reference_grad_norm), tolerances.grad_norm, step);
  bound(cat("gradient of ", step.worst_gradient), step.max_gradient_error, tolerances.gradient, step);
  bound(cat("parameter ", step.worst_parameter), step.max_parameter_error,
        step.learning_rate > 0 ? tolerances.parameter : 0, step);
}

// Norm and factor of the clipping against the layout's own gradients. `table`: the twin's.
void judge_norm(const WholeState& whole, const std::vector<arch::ParamSpec>& table, const engine::StepResult& result, double max_norm,
                VerifyStep& step) {
  double squares = 0;
  for (size_t row = 0; row < table.size(); ++row)
    if (table[row].in_norm) squares += whole.gradients[row].to(at::kDouble).square().sum().item<double>();
  constexpr double kNormRounding = 1e-5;  // sums of up to 256 squares in fp32, then fp64
  bound("gradient norm, against that of the layout's own gradients", relative(result.grad_norm, std::sqrt(squares)),
        kNormRounding, step);
  const double factor = max_norm > 0 && result.grad_norm > max_norm ? max_norm / result.grad_norm : 1;
  bound("clipping factor", relative(result.clip_factor, factor), 1e-12, step);
}

// Of every block with experts: what was sent to each expert and dropped, and the sums of the two losses. The counts are integers. In
// bf16 a token whose scores lie close together may go to another expert, so there the losses alone are held together.
void judge_loads(const engine::StepResult& result, const engine::StepResult& expected, const program::Layout& layout,
                 const Tolerances& tolerances, VerifyStep& step) {
  const int64_t experts = layout.model.experts.count;
  if (result.loads.size() != expected.loads.size())
    step.failures.push_back(cat("loads of experts: ", result.loads.size(), " numbers, on one rank ", expected.loads.size()));
  if (experts == 0 || result.loads.size() != expected.loads.size()) return;
  const double *found = result.loads.data(), *reference = expected.loads.data();
  for (int block = 0; block < static_cast<int>(layout.model.layers); ++block) {
    if (!arch::is_expert_block(layout.model, block + 1)) continue;
    for (int64_t i = 0; i <= experts && layout.precision == config::Precision::kFp32; ++i)
      if (found[i] != reference[i])
        step.failures.push_back(cat("block ", block, i < experts ? cat(", tokens of expert ", i) : std::string(", dropped"), ": ",
                                    found[i], ", on one rank ", reference[i]));
    bound(cat("auxiliary loss of block ", block), relative(found[experts + 1], reference[experts + 1]), tolerances.grad_norm, step);
    bound(cat("z-loss of block ", block), relative(found[experts + 2], reference[experts + 2]), tolerances.grad_norm, step);
    found += experts + arch::load_extras(layout.moe);
    reference += experts + arch::load_extras(layout.moe);
  }
}

void judge_update(const UpdateError& update, const Tolerances& tolerances, VerifyStep& step) {
  step.max_update_error = update.error;
  step.worst_update = update.worst;
  if (!update.same_scale) step.failures.emplace_back("ranks have scaled their gradients differently");
  if (!(update.error <= tolerances.update))
    step.failures.push_back(
        cat("update of ", update.worst, ": ", update.error, " times as far from the formula as rounding explains"));
}

// Rank 0's side.
class Reference {
 public:
  Reference(const config::RunConfig& config, const program::Layout& layout, const Tolerances& tolerances)
      : config_(config),
        tolerances_(tolerances),
        layout_(program::reference_layout(layout)),
        sampler_(open_training_data(config, layout)),
        twin_(executor_options(config, layout_)) {
    load_start_values(config, twin_.executor());
  }

  void adopt(const WholeState& layout) { twin_.adopt(layout); }
  // Both start from the twin's state.
  void leave_alone() {
    reordered_ = std::make_unique<Twin>(reordered(executor_options(config_, layout_), tolerances_));
    reordered_->adopt(twin_.state());
    reordered_->executor().set_last_loads(twin_.executor().last_loads());
  }
  // The step that the layout has made, and what follows from it for `step`. `whole`: the layout's, after it.
  void compare(const WholeState& whole, const engine::StepResult& result, const StepPosition& position, VerifyStep& step) {
    std::vector<nn::Microbatch> microbatches = load_step(sampler_, layout_, 0, position, device_of(config_));
    const engine::StepResult expected = twin_.executor().step(microbatches, position.step + 1, step.learning_rate);
    step.loss = result.loss;
    step.reference_loss = expected.loss;
    step.grad_norm = result.grad_norm;
    step.reference_grad_norm = expected.grad_norm;
    if (result.tokens != expected.tokens)
      step.failures.push_back(cat("valid tokens: ", result.tokens, ", on one rank ", expected.tokens));
    const WholeState twin = twin_.state();
    const std::vector<double> scales = gradient_scales(twin.gradients, layout_);
    compare_gradients(whole, twin, scales, layout_, step);
    compare_parameters(whole, twin, scales, layout_, tolerances_, step);
    judge_norm(whole, layout_.param_table(0), result, config_.optimizer.max_grad_norm, step);
    if (!step.alone) judge_against_twin(tolerances_, step);
    if (!step.alone) judge_loads(result, expected, layout_, tolerances_, step);
    if (!reordered_) return;
    std::ranges::reverse(microbatches);
    reordered_->executor().step(microbatches, position.step + 1, step.learning_rate);
    step.drift = {.layout = distance_of(whole, twin, layout_), .reordered = distance_of(reordered_->state(), twin, layout_)};
    judge_drift(*step.drift, arch::slots_of(layout_.param_table(0)), ++steps_alone_, step.failures);
  }

 private:
  const config::RunConfig& config_;
  const Tolerances& tolerances_;
  program::Layout layout_;
  data::Sampler sampler_;
  Twin twin_;
  std::unique_ptr<Twin> reordered_;  // of the steps in which they are left alone
  int64_t steps_alone_ = 0;
};

// What the formula of every update is made of. Of the configuration, whatever the layout was given.
config::OptimizerSection optimizer_of(const config::RunConfig& config) {
  config::OptimizerSection optimizer = config.optimizer;
  optimizer.bias_rate = config.moe.bias_rate;
  return optimizer;
}

bool ok_everywhere(bool ok, engine::Groups& groups) {
  const at::Tensor failed = at::tensor({ok ? int64_t{0} : int64_t{1}}, at::kLong);
  groups.world().all_reduce(failed, {.id = program::call_id(program::Purpose::kVerdict), .algorithm = program::Algorithm::kDirect, .op = comm::ReduceOp::kMax})
      .wait();
  return failed.item<int64_t>() == 0;
}

}  // namespace

Tolerances tolerances_of(const program::Layout& layout) {
  // Each rank's gradient is rounded to 8 bits before it is sent.
  const bool rounded = layout.reduce_precision == config::Precision::kBf16 && layout.shards() > 1;
  if (layout.precision == config::Precision::kFp32) {
    if (rounded) return {.grad_norm = 1e-2, .gradient = 1e-2, .parameter = 1.0, .noise_floor = 0.1};
    // The last bit of a gradient may be that of an entry in bf16, which five iterations carry on.
    const bool iterates = layout.optimizer.kind == config::OptimizerKind::kMuon && layout.optimizer.ns_precision == config::Precision::kBf16;
    return iterates ? Tolerances{.parameter = 0.25} : Tolerances{};
  }
  // bf16 keeps 8 bits: another split of the batch rounds other partial sums.
  return {.loss = 1e-3, .grad_norm = 1e-2, .gradient = 5e-2, .parameter = 1.0, .noise_floor = 0.1};
}

VerifyReport verify(const config::RunConfig& config, const program::Layout& layout, comm::World& world,
                    const VerifyOptions& options) {
  LOCKSTEP_CHECK(0 <= options.free && options.free <= options.steps, options.free, " free steps of ", options.steps);
  engine::Groups groups(world, layout);
  engine::ExecutorOptions of_layout = executor_options(config, layout);
  if (options.change_layout) options.change_layout(of_layout);
  engine::Executor executor(std::move(of_layout), groups);
  VerifyReport report{.world_size = world.size(),
                      .layout = program::describe(layout),
                      .slots = arch::slots_of(program::reference_layout(layout).param_table(0)),
                      .tolerances = tolerances_of(layout),
                      .free = options.free};
  std::unique_ptr<Reference> reference;
  if (world.rank() == 0) reference = std::make_unique<Reference>(config, layout, report.tolerances);
  load_start_values(config, executor);
  UpdateCheck update(executor, groups, optimizer_of(config));
  TrafficCheck traffic(executor, groups);
  const data::Sampler sampler = open_training_data(config, layout);

  const int64_t first_alone = options.steps - options.free;
  WholeState whole;
  for (int64_t index = 0; index < options.steps; ++index) {
    const StepPosition position{.step = index, .first_sample = index * layout.global_batch};
    VerifyStep step{.learning_rate = optim::learning_rate(config.optimizer, index, config.train.steps),
                    .alone = index > first_alone};
    if (reference && index > 0 && !step.alone) reference->adopt(whole);
    if (reference && index == first_alone) reference->leave_alone();
    const std::vector<nn::Microbatch> microbatches = load_step(sampler, layout, world.rank(), position, device_of(config));
    traffic.begin();
    engine::StepResult result = executor.step(microbatches, index + 1, step.learning_rate, true);
    const std::optional<engine::StepResult> settled = executor.settle();
    if (settled) result = *settled;  // with post-validation: its update is final now
    if (result.skipped.empty()) {
      step.failures = traffic.judge(/*taken_back=*/settled && settled->clip_factor < 1);
      for (const std::string& line : engine::replica_differences(executor, groups)) step.failures.push_back(line);
      judge_update(update.judge(result, step.learning_rate, index + 1), report.tolerances, step);
      const bool slots = index + 1 < options.steps || options.free > 0;
      whole = collect(executor, groups, {.keep = world.rank() == 0, .slots = slots});
      if (reference) reference->compare(whole, result, position, step);
    } else {
      step.failures.push_back(cat("left out: the gradient of ", result.skipped, " is not finite"));
    }
    report.ok = report.ok && step.failures.empty();
    const bool left_out = !result.skipped.empty();
    report.steps.push_back(std::move(step));
    if (left_out) break;  // on all ranks alike
  }
  report.traffic = traffic.report();
  report.ok = ok_everywhere(report.ok, groups);
  return report;
}

}  // namespace lockstep::train
