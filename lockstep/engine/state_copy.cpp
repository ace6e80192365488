#include "lockstep/engine/state_copy.h"

#include <ATen/ops/zeros_like.h>

namespace lockstep::engine {

StateCopy::StateCopy(const ParameterStore& store) {
  const MemoryScope scope(store.options().memory, MemoryCategory::kOptimizer);
  for (size_t unit = 0; unit < store.layout().units.size(); ++unit)
    for (const optim::Parameter& parameter : store.updated_parameters(unit)) {
      states_.push_back(parameter.value);
      states_.insert(states_.end(), parameter.slots.begin(), parameter.slots.end());
      if (!parameter.copy.defined()) continue;
      copies_.push_back(parameter.copy);
      values_.push_back(parameter.value);
    }
  for (const at::Tensor& state : states_) kept_.push_back(at::zeros_like(state));
}

void StateCopy::take() {
  for (size_t i = 0; i < states_.size(); ++i) kept_[i].copy_(states_[i]);
}

void StateCopy::restore() {
  for (size_t i = 0; i < states_.size(); ++i) states_[i].copy_(kept_[i]);
  for (size_t i = 0; i < copies_.size(); ++i) copies_[i].copy_(values_[i]);
}

}  // namespace lockstep::engine
