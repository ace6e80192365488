// What an executor measures of its own steps: memory, and what it waited for.
#include <algorithm>

#include "lockstep/engine/executor.h"

namespace lockstep::engine {

void Executor::note_waits() {
  std::map<std::string, double> waits = waits_.take();
  if (tensor_)
    for (const auto& [what, seconds] : tensor_->take_exposed()) waits["tp " + what] += seconds;
  for (const auto& [what, seconds] : waits) {
    result_.exposed_by[what] += seconds;
    result_.exposed_comm_seconds += seconds;
  }
}

// What an action took beyond `baseline`, what lived before it and what it leaves behind; beside what is on its way.
void Executor::note_workspace(int64_t baseline) {
  int64_t& buffers = measured_[MemoryCategory::kBuffers];
  buffers = std::max(buffers, memory_->peak(kStepMemory) - baseline + memory_->live(MemoryCategory::kBuffers));
}

void Executor::note_activations() {
  int64_t& activations = measured_[MemoryCategory::kActivations];
  activations = std::max(activations, memory_->live(kStepMemory));
}

program::MemoryBytes Executor::measured_memory() const {
  program::MemoryBytes bytes = measured_;
  for (const MemoryCategory category : {MemoryCategory::kParameters, MemoryCategory::kGradients,
                                        MemoryCategory::kOptimizer, MemoryCategory::kHost})
    bytes[category] = memory_->peak(category);
  bytes[MemoryCategory::kBuffers] = std::max(bytes[MemoryCategory::kBuffers], memory_->peak(MemoryCategory::kBuffers));
  bytes.peak = memory_->peak_total();
  return bytes;
}

}  // namespace lockstep::engine
