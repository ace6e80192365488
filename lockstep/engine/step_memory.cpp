#include "lockstep/engine/step_memory.h"

#include <algorithm>

namespace lockstep::engine {

void StepMemory::note_workspace(int64_t baseline) {
  int64_t& buffers = measured_[MemoryCategory::kBuffers];
  buffers = std::max(buffers, account_->peak(kCategory) - baseline + account_->live(MemoryCategory::kBuffers));
}

void StepMemory::note_activations() {
  int64_t& activations = measured_[MemoryCategory::kActivations];
  activations = std::max(activations, live());
}

program::MemoryBytes StepMemory::measured() const {
  program::MemoryBytes bytes = measured_;
  for (const MemoryCategory category : {MemoryCategory::kParameters, MemoryCategory::kGradients,
                                        MemoryCategory::kOptimizer, MemoryCategory::kHost})
    bytes[category] = account_->peak(category);
  bytes[MemoryCategory::kBuffers] = std::max(bytes[MemoryCategory::kBuffers], account_->peak(MemoryCategory::kBuffers));
  bytes.peak = account_->peak_total();
  return bytes;
}

}  // namespace lockstep::engine
