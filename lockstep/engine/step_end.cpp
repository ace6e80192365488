#include "lockstep/engine/step_end.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/engine/expert_loads.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;

StepEnd::StepEnd(const StepView& step, const Parts& parts) : step_(step), with_(parts) {
  if (!step_.layout.pipeline.post_validation) return;
  LOCKSTEP_CHECK(!step_.options.skip_nonfinite, "a step cannot be left out once the next one has begun");
  before_ = std::make_unique<StateCopy>(step_.store);
  clipped_ = step_.options.max_grad_norm > 0;
}

void StepEnd::add_handlers(Handlers& handlers) {
  handlers.add({ActionKind::kLoss}, [this](const Action& action) { return loss(action); });
  handlers.add({ActionKind::kNorm}, [this](const Action& action) { return norm(action); });
  handlers.add({ActionKind::kTokens}, [this](const Action& action) { return tokens(action); });
  handlers.add_prompt({ActionKind::kStep}, [this](const Action& action) { update(action); });
  handlers.add_prompt({ActionKind::kValidate}, [this](const Action&) { validate(); });
}

void StepEnd::begin(bool may_pend) {
  step_.state.pends = may_pend && before_ && !clipped_;
  if (!before_) with_.gradients.start_step();  // else VALIDATE does, which may still need those of the step before
}

int64_t StepEnd::tokens_here() const {
  int64_t tokens = 0;
  for (const nn::Microbatch& microbatch : *step_.state.microbatches) tokens += valid_targets(microbatch);
  return tokens;
}

// The sum of this rank's losses. They come over together with the flags of gradients, in one copy; fp64 holds both exactly.
double StepEnd::read_device() {
  FiniteWatch& watch = with_.gradients.watch();
  const std::vector<at::Tensor>& of_microbatches = step_.state.losses;
  const size_t losses = with_.layers.counts_loss() ? of_microbatches.size() : 0;
  std::vector<at::Tensor> told;
  if (losses > 0) told.push_back(at::stack(of_microbatches).to(at::kDouble));
  if (const at::Tensor flags = watch.unread(); flags.defined()) told.push_back(flags.to(at::kDouble));
  if (told.empty()) return 0;
  const at::Tensor here = at::cat(told).cpu();
  with_.gradients.device_waited_for();
  const double* values = here.const_data_ptr<double>();
  watch.read({values + losses, static_cast<size_t>(here.numel()) - losses});
  return program::sum_on_rank(program::Summed::kLoss, {values, losses});
}

Started StepEnd::loss(const Action& action) {
  StepState& state = step_.state;
  const double loss = read_device();
  const auto tokens = static_cast<double>(with_.layers.counts_loss() ? tokens_here() : 0);
  std::vector<double> numbers = {loss, tokens, with_.gradients.watch().first() >= 0 ? 1.0 : 0.0};
  std::vector<double> loads = with_.layers.take_loads();
  if (step_.options.before_loads) step_.options.before_loads(loads);
  numbers.insert(numbers.end(), loads.begin(), loads.end());
  const LossSums all{.sums = at::tensor(numbers, at::kDouble)};
  const program::PlannedCall* call = step_.calls.only(action);
  Started joined = waiting_for(call ? execute(step_.groups, *call, {.input = all.sums}, /*blocking=*/!state.pends) : comm::Work(),
                               step_.waits, "loss");
  if (state.pends) {
    pending_ = Pending{.step = state.step, .lr = state.lr, .loss = all};
    return joined;
  }
  joined();
  all.finite() ? all.tell(step_.layout, state.result) : nonfinite(state.step);
  return {};
}

void StepEnd::LossSums::tell(const program::Layout& layout, StepResult& result) const {
  const double* values = sums.const_data_ptr<double>();
  result.tokens = std::llround(values[1]);
  LOCKSTEP_CHECK(result.tokens > 0, "a step without a single valid target");
  result.loss = values[0] / values[1];
  result.loads.assign(values + 3, values + sums.numel());
  for (const ExpertLoad& load : expert_loads(layout, result.loads)) {
    result.aux_loss += load.aux_sum / values[1];
    result.z_loss += load.z_sum / values[1];
  }
}

const program::PlannedCall* StepEnd::norm_call(const Action& action, program::Collective collective) {
  for (const program::PlannedCall& call : step_.calls.of(action))
    if (call.collective == collective) return &call;
  return nullptr;
}

double StepEnd::norm_of_ranks(const Action& action) {
  const at::Tensor norm = at::zeros({1}, at::kDouble);
  if (step_.layout.owns_optimizer(step_.groups.rank())) {
    const GradientReducer::Norm mine = with_.gradients.start_norm(norm_call(action, program::Collective::kAllReduce), true);
    if (mine.joined) mine.joined();
    norm.fill_(mine.value());
  }
  if (const program::PlannedCall* told = norm_call(action, program::Collective::kBroadcast)) {
    comm::Work work = execute(step_.groups, *told, {.input = norm}, /*blocking=*/true);
    step_.waits.wait(work, "norm");
  }
  return norm.item<double>();
}

// The one division by the global token count, and the clipping.
Started StepEnd::norm(const Action& action) {
  StepState& state = step_.state;
  if (state.pends) {
    pending_->norm = with_.gradients.start_norm(norm_call(action, program::Collective::kAllReduce), false);
    step_.groups.world().confirm();
    // All ranks of one replica see the same tokens.
    state.gradient_scale = 1 / (step_.groups.data().size() == 1 ? static_cast<double>(tokens_here()) : tokens_.item<double>());
    before_->take();
    return pending_->norm.joined;
  }
  const double norm = norm_of_ranks(action);
  // The device has come past all reductions: one that was aborted is known by now, and must reach no weight.
  step_.groups.world().confirm();
  scale(norm, state.result);
  if (std::isfinite(state.result.grad_norm)) return {};
  with_.gradients.check_finite();
  nonfinite(state.step);
  return {};
}

// By the norm of the summed gradients and the tokens of the step.
void StepEnd::scale(double norm, StepResult& result) {
  const auto tokens = static_cast<double>(result.tokens);
  result.grad_norm = norm / tokens;
  if (!std::isfinite(result.grad_norm)) return;
  result.clip_factor = optim::clip_factor(result.grad_norm, step_.options.max_grad_norm);
  clipped_ = result.clip_factor < 1;
  step_.state.gradient_scale = result.clip_factor / tokens;
}

void StepEnd::update(const Action& action) {
  optim::step(updated(action.unit), step_.layout.optimizer, step_.state.point());
  with_.matrices.apply(action.unit);
}

// Of one unit, or of all. A GPU stands still while they are put together, so views that stay are
// made once; what is offloaded may lie elsewhere each time.
const std::vector<optim::Parameter>& StepEnd::updated(int id) {
  const auto [place, fresh] = updated_.try_emplace(id);
  std::vector<optim::Parameter>& parameters = place->second;
  ParameterStore& store = step_.store;
  if (!fresh && !store.host()) return parameters;
  parameters.clear();
  for (size_t unit = 0; unit < store.layout().units.size(); ++unit)
    if (id < 0 || store.layout().units[unit].id == id)
      for (auto& [place_of, parameter] : store.updated(unit)) parameters.push_back(std::move(parameter));
  return parameters;
}

}  // namespace lockstep::engine
