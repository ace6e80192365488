// What an update changes, as it was before it: so that it can be taken back to the bit.
#pragma once

#include <ATen/ops/zeros_like.h>

#include <utility>
#include <vector>

#include "lockstep/engine/parameter_store.h"

namespace lockstep::engine {

// Master weights and the optimizer's slots of what this rank owns: arch::update_bytes,
// accounted as optimizer state.
class StateCopy {
 public:
  explicit StateCopy(const ParameterStore& store) {
    const MemoryScope scope(store.options().memory, MemoryCategory::kOptimizer);
    for (size_t unit = 0; unit < store.layout().units.size(); ++unit)
      for (const optim::Parameter& parameter : store.updated_parameters(unit)) {
        keep(parameter.value);
        for (const at::Tensor& slot : parameter.slots) keep(slot);
        if (parameter.copy.defined()) copies_.emplace_back(parameter.copy, parameter.value);
      }
  }

  void take() {
    for (const auto& [state, kept] : states_) kept.copy_(state);
  }
  // As it was at the last take(); bf16 copies are rounded from the master weights.
  void restore() {
    for (const auto& [state, kept] : states_) state.copy_(kept);
    for (const auto& [copy, value] : copies_) copy.copy_(value);
  }

 private:
  void keep(const at::Tensor& state) { states_.emplace_back(state, at::zeros_like(state)); }

  std::vector<std::pair<at::Tensor, at::Tensor>> states_;  // views into the store's buffers, and what they were
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // bf16 copies, and what they are rounded from
};

}  // namespace lockstep::engine
