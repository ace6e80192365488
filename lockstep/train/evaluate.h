// Validation loss, and when a run wants to know it.
#pragma once

#include "lockstep/data/sampler.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/groups.h"
#include "lockstep/train/run_output.h"
#include "lockstep/train/step_policy.h"

namespace lockstep::train {

// Mean loss per token over the first `samples` validation sequences (fewer where the data has fewer), shared out over the
// replicas; every rank gets the same value. Collective over all ranks.
double evaluate(engine::Executor& executor, engine::Groups& groups, const data::Sampler& validation, int64_t samples,
                at::Device device);

class Evaluation : public StepPolicy {
 public:
  // `output` outlives it. `every`: 0 = never; `loss`: collective.
  Evaluation(int64_t every, int64_t total_steps, std::function<double()> loss, RunOutput& output)
      : every_(every), total_steps_(total_steps), loss_(std::move(loss)), output_(output) {}

  // Every so many steps, and the last.
  bool due(int64_t step) const override { return every_ > 0 && (step % every_ == 0 || step == total_steps_); }
  void settled(const RunPosition& at) override;

 private:
  int64_t every_, total_steps_;
  std::function<double()> loss_;
  RunOutput& output_;
};

}  // namespace lockstep::train
