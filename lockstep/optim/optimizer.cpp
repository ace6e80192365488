#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/check.h"
#include "lockstep/optim/functions.h"

namespace lockstep::optim {
namespace {

const Functions& functions_of(const arch::OptimizerSpec& optimizer) {
  for (const Functions* functions : {&kAdamW, &kMuon, &kBalance})
    if (functions->id == optimizer.id) return *functions;
  throw InternalError(cat("no step function of ", optimizer.id));
}

const Functions& whole_matrix(const arch::OptimizerSpec& optimizer) {
  const Functions& functions = functions_of(optimizer);
  LOCKSTEP_CHECK(functions.direction != nullptr, optimizer.id, " is no optimizer of whole matrices");
  return functions;
}

// What a rule makes of the section and of the point of its step.
Section options_of(const arch::UpdateRule& rule, Section options) {
  options.weight_decay = rule.weight_decay.value_or(options.weight_decay);
  if (rule.weight_decay) options.muon_weight_decay = rule.weight_decay;
  return options;
}

StepPoint point_of(const arch::UpdateRule& rule, StepPoint point) {
  point.lr *= rule.lr_factor;
  return point;
}

// Parameters of one rule.
void step_alike(const std::vector<Parameter>& alike, const Section& options, const StepPoint& point) {
  const arch::UpdateRule& rule = alike.front().rule;
  for (const Parameter& parameter : alike)
    LOCKSTEP_CHECK_EQ(parameter.slots.size(), rule.optimizer->slots.size(), "slots of ", rule.optimizer->id);
  const Functions& functions = functions_of(*rule.optimizer);
  if (functions.step) return functions.step(alike, options_of(rule, options), point_of(rule, point));
  for (const Parameter& matrix : alike) {
    LOCKSTEP_CHECK_EQ(matrix.value.dim(), 2, rule.optimizer->id, " updates matrices");
    const at::Tensor update = orthogonal(*rule.optimizer, direction(matrix, options, point), options);
    apply(matrix, update, matrix.value.sizes(), options, point);
  }
}

// Where `step` stands between `first` (0) and `last` (1).
double fraction(int64_t step, int64_t first, int64_t last) {
  if (last <= first) return step >= last ? 1.0 : 0.0;
  return std::clamp(static_cast<double>(step - first) / static_cast<double>(last - first), 0.0, 1.0);
}

}  // namespace

double learning_rate(const Section& optimizer, int64_t step, int64_t steps) {
  const int64_t warmup = optimizer.warmup_steps;
  if (step < warmup) return optimizer.lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double span = optimizer.lr - optimizer.min_lr;
  const double x = fraction(step, warmup, steps - 1);
  switch (optimizer.schedule) {
    case config::LrSchedule::kConstant:
      return optimizer.lr;
    case config::LrSchedule::kLinear:
      return optimizer.lr - span * x;
    case config::LrSchedule::kCosine:
      return optimizer.min_lr + span * 0.5 * (1 + std::cos(std::numbers::pi * x));
    case config::LrSchedule::kWsd: {
      const int64_t decay_begin = std::max(warmup, steps - std::max<int64_t>(1, steps / 5));
      if (step < decay_begin) return optimizer.lr;
      return optimizer.min_lr + span * (1 - std::sqrt(fraction(step, decay_begin, steps - 1)));
    }
  }
  LOCKSTEP_CHECK(false, "unknown schedule");
}

at::Tensor direction(const Parameter& piece, const Section& options, const StepPoint& point) {
  return whole_matrix(*piece.rule.optimizer).direction(piece, options_of(piece.rule, options), point_of(piece.rule, point));
}

at::Tensor orthogonal(const arch::OptimizerSpec& optimizer, const at::Tensor& matrix, const Section& options) {
  return whole_matrix(optimizer).orthogonal(matrix, options);
}

void apply(const Parameter& piece, const at::Tensor& orthogonal_piece, at::IntArrayRef shape, const Section& options,
           const StepPoint& point) {
  whole_matrix(*piece.rule.optimizer)
      .apply(piece, orthogonal_piece, shape, options_of(piece.rule, options), point_of(piece.rule, point));
}

// Those of one rule together, in their order.
void step(const std::vector<Parameter>& parameters, const Section& options, const StepPoint& point) {
  for (std::vector<Parameter> left = parameters; !left.empty();) {
    const auto next = std::stable_partition(left.begin(), left.end(), [rule = left.front().rule](const Parameter& parameter) {
      return parameter.rule == rule;
    });
    step_alike({left.begin(), next}, options, point);
    left.erase(left.begin(), next);
  }
}

UpdateFormula update_formula(const arch::UpdateRule& rule, const Section& options, const StepPoint& point, bool decay) {
  return functions_of(*rule.optimizer).formula(options_of(rule, options), point_of(rule, point), decay);
}

}  // namespace lockstep::optim
