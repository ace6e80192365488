#include "lockstep/train/verify_update.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

using engine::StateKind;

constexpr double kUlp = 0x1p-24;
constexpr double kLeast = 0x1p-126;  // below it a processor may flush to zero
constexpr size_t kValue = 0;

// Of what is judged, in the order of UpdateCheck::Part, with the compute copy behind it.
std::string_view state_text(const arch::OptimizerSpec& optimizer, size_t state) {
  if (state == kValue) return "value";
  return state <= optimizer.slots.size() ? optimizer.slots[state - 1].text : "compute copy";
}

// What is no number is as far off as can be.
double error_of(double found, double expected, double bound) {
  const double error = std::abs(found - expected) / bound;
  return std::isnan(error) ? INFINITY : error;
}

std::vector<const float*> data_of(const std::vector<at::Tensor>& part) {
  std::vector<const float*> data;
  for (const at::Tensor& state : part) data.push_back(state.const_data_ptr<float>());
  return data;
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kFloat, false, true).contiguous(); }

}  // namespace

UpdateCheck::UpdateCheck(engine::Executor& executor, engine::Groups& groups, const config::OptimizerSection& optimizer)
    : executor_(executor), groups_(groups), optimizer_(optimizer), before_(read()) {}

std::vector<UpdateCheck::Part> UpdateCheck::read() {
  std::vector<Part> parts;
  const engine::ParameterStore& store = executor_.store();
  for (size_t unit = 0; store.owns_optimizer() && unit < store.layout().units.size(); ++unit) {
    Part part = {on_host(store.state_part(unit, StateKind::kMaster))};
    for (const arch::StateSlot& slot : executor_.layout().optimizer->slots)
      part.push_back(on_host(store.state_part(unit, StateKind{slot.name})));
    parts.push_back(std::move(part));
  }
  return parts;
}

void UpdateCheck::judge_unit(size_t unit, const Part& found, const optim::StepPoint& point, Worst& worst) {
  const engine::ParameterStore& store = executor_.store();
  const at::Tensor gradient = on_host(store.grad_part(unit));
  const auto* g = gradient.const_data_ptr<float>();
  const std::vector<const float*> old = data_of(before_[unit]), now = data_of(found);
  std::vector<double> before(old.size()), expected(old.size()), rounding(old.size());
  for (const arch::ShardSlot& slot : store.slots(unit)) {
    const bool decay = store.table()[static_cast<size_t>(slot.param)].weight_decay;
    const optim::UpdateFormula formula = optim::update_formula(*executor_.layout().optimizer, optimizer_, point, decay);
    for (int64_t i = slot.offset; i < slot.offset + slot.numel; ++i) {
      for (size_t state = 0; state < old.size(); ++state) before[state] = old[state][i];
      formula(before, g[i], expected, rounding);
      for (size_t state = 0; state < now.size(); ++state) {
        const double error = error_of(now[state][i], expected[state], rounding[state]);
        if (error > worst.error) worst = {error, static_cast<double>(slot.param), static_cast<double>(state)};
      }
    }
  }
}

void UpdateCheck::judge_copy(size_t unit, const Part& found, Worst& worst) {
  const engine::ParameterStore& store = executor_.store();
  const at::Tensor kept = store.state_part(unit, StateKind::kParameter);
  const at::Tensor copy = on_host(kept), rounded = found[kValue].to(kept.scalar_type()).to(at::kFloat);
  const auto *is = copy.const_data_ptr<float>(), *should = rounded.const_data_ptr<float>();
  for (const arch::ShardSlot& slot : store.slots(unit))
    for (int64_t i = slot.offset; i < slot.offset + slot.numel; ++i) {
      const double error = error_of(is[i], should[i], (std::abs(static_cast<double>(should[i])) + kLeast) * kUlp / 2);
      if (error > worst.error) worst = {error, static_cast<double>(slot.param), static_cast<double>(found.size())};
    }
}

UpdateError UpdateCheck::judge(const engine::StepResult& result, double lr, int64_t step) {
  // The gradient is a sum over the tokens of the global batch.
  const optim::StepPoint point{
      .lr = lr, .number = step, .grad_scale = result.clip_factor / static_cast<double>(result.tokens)};
  Worst worst;
  std::vector<Part> found = read();
  for (size_t unit = 0; unit < found.size(); ++unit) {
    judge_unit(unit, found[unit], point, worst);
    judge_copy(unit, found[unit], worst);
  }
  before_ = std::move(found);

  constexpr int kNumbers = 4;
  const std::vector<arch::ParamSpec>& table = executor_.store().table();
  const std::vector<arch::ParamSpec> all = arch::param_table(executor_.layout().model);
  double row = 0;  // of the whole model's table
  while (all.at(static_cast<size_t>(row)).name != table.at(static_cast<size_t>(worst.row)).name) ++row;
  const at::Tensor mine = at::tensor({worst.error, row, worst.state, point.grad_scale}, at::kDouble);
  const at::Tensor ranks = at::empty({groups_.world().size() * kNumbers}, at::kDouble);
  groups_.world().all_gather(mine, ranks, {.site = "worst update"}).wait();
  const double* numbers = ranks.const_data_ptr<double>();
  UpdateError error;
  for (int rank = 0; rank < groups_.world().size(); ++rank, numbers += kNumbers) {
    error.same_scale = error.same_scale && numbers[3] == point.grad_scale;
    if (!error.worst.empty() && numbers[0] <= error.error) continue;
    error.error = numbers[0];
    error.worst = cat(all.at(static_cast<size_t>(numbers[1])).name, ", ",
                      state_text(*executor_.layout().optimizer, static_cast<size_t>(numbers[2])), ", rank ", rank);
  }
  return error;
}

}  // namespace lockstep::train
