#include "lockstep/train/verify_update.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/arch/params.h"
#include "lockstep/base/text.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::train {
namespace {

using engine::StateKind;
using optim::kLeastNormal;
using optim::kUlp;

constexpr size_t kValue = 0;

// Of what is judged, in the order of UpdateCheck::Part, with the compute copy behind it.
std::string_view state_text(const std::vector<arch::StateSlot>& slots, size_t state) {
  if (state == kValue) return "value";
  return state <= slots.size() ? slots[state - 1].text : "compute copy";
}

// Where the states of an optimizer stand in a Part: the value, then its slots.
std::vector<size_t> states_of(const arch::OptimizerSpec& optimizer, const std::vector<arch::StateSlot>& slots) {
  std::vector<size_t> states = {kValue};
  for (const arch::StateSlot& slot : optimizer.slots)
    states.push_back(1 + static_cast<size_t>(std::ranges::find(slots, slot.name, &arch::StateSlot::name) - slots.begin()));
  return states;
}

double size_of(const at::Tensor& tensor) { return at::linalg_vector_norm(tensor.to(at::kDouble), 2).item<double>(); }

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
    : executor_(executor),
      groups_(groups),
      optimizer_(optimizer),
      slots_(arch::slots_of(program::reference_layout(executor.layout()).param_table(0))),
      before_(read()),
      matrices_before_(read_matrices()) {}

std::vector<UpdateCheck::Part> UpdateCheck::read() {
  std::vector<Part> parts;
  const engine::ParameterStore& store = executor_.store();
  for (size_t unit = 0; store.owns_optimizer() && unit < store.layout().units.size(); ++unit) {
    Part part = {on_host(store.state_part(unit, StateKind::kMaster))};
    for (const arch::StateSlot& slot : slots_)
      part.push_back(on_host(store.state_part(unit, StateKind{slot.name})));
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<at::Tensor> UpdateCheck::read_matrices() {
  std::vector<at::Tensor> matrices(executor_.store().table().size());
  for (size_t row = 0; executor_.store().owns_optimizer() && row < matrices.size(); ++row)
    if (executor_.store().table()[row].update.optimizer->whole_matrix)
      matrices[row] = on_host(executor_.whole_value(static_cast<int>(row)));
  return matrices;
}

// Momentum after the step is judged element by element; the direction follows from it and the gradient.
void UpdateCheck::judge_matrices(const engine::StepResult& result, const optim::StepPoint& point, Worst& worst) {
  std::vector<at::Tensor> found = read_matrices();
  const double share = optimizer_.ns_precision == config::Precision::kBf16 ? 0x1p-8 : 0x1p-14;
  for (size_t row = 0; row < found.size(); ++row) {
    if (!found[row].defined()) continue;
    const arch::ParamSpec& spec = executor_.store().table()[row];
    const at::Tensor gradient = on_host(executor_.whole_gradient(static_cast<int>(row))).mul_(result.clip_factor);
    at::Tensor momentum = on_host(executor_.whole_state(static_cast<int>(row), StateKind{spec.update.optimizer->slots[0].name}));
    const at::Tensor direction = optimizer_.nesterov ? gradient.lerp(momentum, optimizer_.momentum) : momentum;
    const at::Tensor update = optim::orthogonal(*spec.update.optimizer, direction, optimizer_);
    const at::Tensor expected = matrices_before_[row].clone();
    optim::apply({.value = expected, .grad = {}, .decay = spec.weight_decay, .rule = spec.update}, update,
                 spec.shape, optimizer_, point);
    const double moved = size_of(at::sub(expected, matrices_before_[row]));
    const double bound = share * moved + kUlp * 4 * size_of(expected) + kLeastNormal;
    const double error = error_of(size_of(at::sub(found[row], expected)), 0, bound);
    if (error > worst.error) worst = {error, static_cast<double>(row), static_cast<double>(kValue)};
  }
  matrices_before_ = std::move(found);
}

void UpdateCheck::judge_unit(size_t unit, const Part& found, const optim::StepPoint& point, Worst& worst) {
  const engine::ParameterStore& store = executor_.store();
  const at::Tensor gradient = on_host(store.grad_part(unit));
  const auto* g = gradient.const_data_ptr<float>();
  const std::vector<const float*> old = data_of(before_[unit]), now = data_of(found);
  std::vector<double> before(old.size()), expected(old.size()), rounding(old.size());
  for (const arch::ShardSlot& slot : store.slots(unit)) {
    const arch::ParamSpec& spec = store.table()[static_cast<size_t>(slot.param)];
    const std::vector<size_t> states = states_of(*spec.update.optimizer, slots_);
    const optim::UpdateFormula formula = optim::update_formula(spec.update, optimizer_, point, spec.weight_decay);
    for (int64_t i = slot.offset; i < slot.offset + slot.numel; ++i) {
      for (size_t state = 0; state < states.size(); ++state) before[state] = old[states[state]][i];
      formula(before, g[i], expected, rounding);
      const size_t first = spec.update.optimizer->whole_matrix ? 1 : 0;  // the value: judge_matrices()
      for (size_t state = first; state < states.size(); ++state) {
        const double error = error_of(now[states[state]][i], expected[state], rounding[state]);
        if (error > worst.error) worst = {error, static_cast<double>(slot.param), static_cast<double>(states[state])};
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
      const double error = error_of(is[i], should[i], (std::abs(static_cast<double>(should[i])) + kLeastNormal) * kUlp / 2);
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
  judge_matrices(result, point, worst);

  constexpr int kNumbers = 4;
  const std::vector<arch::ParamSpec>& table = executor_.store().table();
  const std::vector<arch::ParamSpec> all = arch::param_table(executor_.layout().model);
  double row = 0;  // of the whole model's table
  while (all.at(static_cast<size_t>(row)).name != table.at(static_cast<size_t>(worst.row)).name) ++row;
  const at::Tensor mine = at::tensor({worst.error, row, worst.state, point.grad_scale}, at::kDouble);
  const at::Tensor ranks = at::empty({groups_.world().size() * kNumbers}, at::kDouble);
  groups_.world().all_gather(mine, ranks, {.id = program::call_id(program::Purpose::kWorstUpdate)}).wait();
  const double* numbers = ranks.const_data_ptr<double>();
  UpdateError error;
  for (int rank = 0; rank < groups_.world().size(); ++rank, numbers += kNumbers) {
    error.same_scale = error.same_scale && numbers[3] == point.grad_scale;
    if (!error.worst.empty() && numbers[0] <= error.error) continue;
    error.error = numbers[0];
    error.worst = cat(all.at(static_cast<size_t>(numbers[1])).name, ", ",
                      state_text(slots_, static_cast<size_t>(numbers[2])), ", rank ", rank);
  }
  return error;
}

}  // namespace lockstep::train
