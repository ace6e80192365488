#include "lockstep/train/verify_update.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <cmath>

#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

using engine::StateKind;

constexpr double kUlp = 0x1p-24;
constexpr double kLeast = 0x1p-126;  // below it a processor may flush to zero
constexpr std::array<const char*, 4> kSlots = {"value", "first moment", "second moment", "compute copy"};

// What is no number is as far off as can be.
double error_of(double found, double expected, double bound) {
  const double error = std::abs(found - expected) / bound;
  return std::isnan(error) ? INFINITY : error;
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kFloat, false, true).contiguous(); }

}  // namespace

// First moment: the scaled gradient is off by 2 roundings (factor, product), the difference to the old moment, its factor and
// the product by 3 more, the sum by 1. Second: all terms are positive, at most 8 in a row. Value: the factor of the decay and
// its product 2, the sum 1; the step by at most 16 in a row, by what the first moment is off, and by a second moment that is
// flushed to zero: sqrt(2^-126) is then missing below the line.
AdamWFormula::Result AdamWFormula::update(const AdamWState& before, double gradient) const {
  const double g = gradient * scale;
  Result result;
  AdamWState &next = result.state, &error = result.rounding;
  next.exp_avg = beta1 * before.exp_avg + (1 - beta1) * g;
  next.exp_avg_sq = beta2 * before.exp_avg_sq + (1 - beta2) * g * g;
  const double rate = lr / correction1, below = std::sqrt(next.exp_avg_sq / correction2) + eps;
  const double step = rate * next.exp_avg / below;
  next.value = before.value - lr * weight_decay * before.value - step;

  error.exp_avg = kUlp * (6 * (1 - beta1) * (std::abs(g) + std::abs(before.exp_avg)) + 2 * std::abs(next.exp_avg)) + kLeast;
  error.exp_avg_sq = kUlp * 8 * next.exp_avg_sq + kLeast;
  error.value = kUlp * (2 * std::abs(before.value) + std::abs(next.value)) + kLeast;
  const double flushed = std::sqrt(kLeast / correction2) / below;
  error.value += (16 * kUlp + flushed) * std::abs(step) + rate * error.exp_avg / below;
  return result;
}

UpdateCheck::UpdateCheck(engine::Executor& executor, engine::Groups& groups, const config::OptimizerSection& optimizer)
    : executor_(executor), groups_(groups), optimizer_(optimizer), before_(read()) {}

std::vector<UpdateCheck::Part> UpdateCheck::read() {
  std::vector<Part> parts;
  const engine::ParameterStore& store = executor_.store();
  for (size_t unit = 0; store.owns_moments() && unit < store.layout().units.size(); ++unit)
    parts.push_back({.value = on_host(store.state_part(unit, StateKind::kMaster)),
                     .exp_avg = on_host(store.state_part(unit, StateKind::kExpAvg)),
                     .exp_avg_sq = on_host(store.state_part(unit, StateKind::kExpAvgSq))});
  return parts;
}

void UpdateCheck::judge_unit(size_t unit, const Part& found, const AdamWFormula& formula, Worst& worst) {
  const engine::ParameterStore& store = executor_.store();
  const at::Tensor gradient = on_host(store.grad_part(unit));
  const auto* g = gradient.const_data_ptr<float>();
  const Part& before = before_[unit];
  const std::array<const float*, 3> old = {before.value.const_data_ptr<float>(), before.exp_avg.const_data_ptr<float>(),
                                           before.exp_avg_sq.const_data_ptr<float>()};
  const std::array<const float*, 3> now = {found.value.const_data_ptr<float>(), found.exp_avg.const_data_ptr<float>(),
                                           found.exp_avg_sq.const_data_ptr<float>()};
  for (const arch::ShardSlot& slot : store.slots(unit)) {
    AdamWFormula of_slot = formula;
    if (!store.table()[static_cast<size_t>(slot.param)].weight_decay) of_slot.weight_decay = 0;
    for (int64_t i = slot.offset; i < slot.offset + slot.numel; ++i) {
      const AdamWState start{old[0][i], old[1][i], old[2][i]};
      const auto [expected, bound] = of_slot.update(start, g[i]);
      const std::array<double, 3> errors = {error_of(now[0][i], expected.value, bound.value),
                                            error_of(now[1][i], expected.exp_avg, bound.exp_avg),
                                            error_of(now[2][i], expected.exp_avg_sq, bound.exp_avg_sq)};
      for (size_t which = 0; which < errors.size(); ++which)
        if (errors[which] > worst.error)
          worst = {errors[which], static_cast<double>(slot.param), static_cast<double>(which)};
    }
  }
}

void UpdateCheck::judge_copy(size_t unit, const Part& found, Worst& worst) {
  const engine::ParameterStore& store = executor_.store();
  const at::Tensor kept = store.state_part(unit, StateKind::kParameter);
  const at::Tensor copy = on_host(kept), rounded = found.value.to(kept.scalar_type()).to(at::kFloat);
  const auto *is = copy.const_data_ptr<float>(), *should = rounded.const_data_ptr<float>();
  for (const arch::ShardSlot& slot : store.slots(unit))
    for (int64_t i = slot.offset; i < slot.offset + slot.numel; ++i) {
      const double error = error_of(is[i], should[i], (std::abs(static_cast<double>(should[i])) + kLeast) * kUlp / 2);
      if (error > worst.error) worst = {error, static_cast<double>(slot.param), 3};
    }
}

UpdateError UpdateCheck::judge(const engine::StepResult& result, double lr, int64_t step) {
  const auto t = static_cast<double>(step);
  const AdamWFormula formula{.lr = lr,
                             .weight_decay = optimizer_.weight_decay,
                             .beta1 = optimizer_.beta1,
                             .beta2 = optimizer_.beta2,
                             .eps = optimizer_.eps,
                             .correction1 = 1 - std::pow(optimizer_.beta1, t),
                             .correction2 = 1 - std::pow(optimizer_.beta2, t),
                             .scale = result.clip_factor / static_cast<double>(result.tokens)};
  Worst worst;
  std::vector<Part> found = read();
  for (size_t unit = 0; unit < found.size(); ++unit) {
    judge_unit(unit, found[unit], formula, worst);
    judge_copy(unit, found[unit], worst);
  }
  before_ = std::move(found);

  constexpr int kNumbers = 4;
  const std::vector<arch::ParamSpec>& table = executor_.store().table();
  const std::vector<arch::ParamSpec> all = arch::param_table(executor_.layout().model);
  double row = 0;  // of the whole model's table
  while (all.at(static_cast<size_t>(row)).name != table.at(static_cast<size_t>(worst.row)).name) ++row;
  const at::Tensor mine = at::tensor({worst.error, row, worst.slot, formula.scale}, at::kDouble);
  const at::Tensor ranks = at::empty({groups_.world().size() * kNumbers}, at::kDouble);
  groups_.world().all_gather(mine, ranks, {.site = "worst update"}).wait();
  const double* numbers = ranks.const_data_ptr<double>();
  UpdateError error;
  for (int rank = 0; rank < groups_.world().size(); ++rank, numbers += kNumbers) {
    error.same_scale = error.same_scale && numbers[3] == formula.scale;
    if (!error.worst.empty() && numbers[0] <= error.error) continue;
    error.error = numbers[0];
    error.worst = cat(all.at(static_cast<size_t>(numbers[1])).name, ", ", kSlots.at(static_cast<size_t>(numbers[2])), ", rank ", rank);
  }
  return error;
}

}  // namespace lockstep::train
