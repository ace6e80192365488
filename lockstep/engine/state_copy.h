// What an update changes, as it was before it: so that it can be taken back to the bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/engine/parameter_store.h"

namespace lockstep::engine {

// Master weights and the optimizer's slots of what this rank owns: arch::update_bytes,
// accounted as optimizer state.
class StateCopy {
 public:
  explicit StateCopy(const ParameterStore& store);

  void take();
  // As it was at the last take(); bf16 copies are rounded from the master weights.
  void restore();

 private:
  std::vector<at::Tensor> states_;  // views into the store's buffers
  std::vector<at::Tensor> kept_;
  std::vector<at::Tensor> copies_, values_;  // bf16 copies, and what they are rounded from
};

}  // namespace lockstep::engine
