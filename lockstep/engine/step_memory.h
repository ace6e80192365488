// What the actions of a step take of memory, measured as program/predict/memory.h states it.
#pragma once

#include <memory>

#include "lockstep/engine/memory_tracker.h"

namespace lockstep::engine {

class StepMemory {
 public:
  explicit StepMemory(std::shared_ptr<MemoryAccount> account) : account_(std::move(account)) {}

  // Activations and workspace share one counter while a step runs; the notes tell them apart at the borders of actions.
  MemoryScope scope() const { return {account_, kCategory}; }
  const std::shared_ptr<MemoryAccount>& account() const { return account_; }
  int64_t live() const { return account_->live(kCategory); }
  void restart_peak() { account_->restart_peak(kCategory); }
  // What an action took beyond `baseline`, what lived before it and what it leaves behind; beside what is on its way.
  void note_workspace(int64_t baseline);
  void note_activations();
  // Largest bytes per category since the start.
  program::MemoryBytes measured() const;

 private:
  static constexpr MemoryCategory kCategory = MemoryCategory::kActivations;
  std::shared_ptr<MemoryAccount> account_;
  program::MemoryBytes measured_{};
};

}  // namespace lockstep::engine
