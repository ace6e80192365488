// What is told of the steps of a run: a line on the terminal and in metrics.jsonl, and in the end what ranks have waited for.
#pragma once

#include "lockstep/engine/expert_loads.h"
#include "lockstep/train/console.h"
#include "lockstep/train/exposed.h"
#include "lockstep/train/predicted_step.h"
#include "lockstep/train/run_output.h"
#include "lockstep/train/step_policy.h"

namespace lockstep::train {

struct StepLogOptions {
  int64_t every = 1;           // steps between two lines
  int64_t total = 0;           // steps of the run
  // Of a step, views into it; none without experts.
  std::function<std::vector<engine::ExpertLoad>(const engine::StepResult& result)> expert_loads =
      [](const engine::StepResult&) { return std::vector<engine::ExpertLoad>(); };
  std::function<double()> worst_memory_gib{};         // collective; asked for each line
  std::function<void(int64_t step)> behind_first{};  // the first line; on rank 0
  std::optional<PredictedStep> predicted{};
};

class StepLog : public StepPolicy {
 public:
  // `output` outlives it.
  StepLog(StepLogOptions options, RunOutput& output) : options_(std::move(options)), output_(output) {}

  // The run goes on behind step `step`; all ranks together make `flops_per_s` at most.
  void begin(int64_t step, double flops_per_s) {
    began_at_ = step;
    flops_per_s_ = flops_per_s;
  }

  // Every so many steps, the first that this process makes, and the last of the run.
  bool due(int64_t step) const override {
    return step % options_.every == 0 || step == began_at_ + 1 || step == options_.total;
  }
  // Speed is that of all steps since the last line.
  void known(const StepRecord& record, const RunPosition& at) override;
  double last_loss() const { return last_loss_; }
  // Notes what all steps have waited for, and what they have copied; and where a step was predicted the median of those behind the first beside it,
  // the same as event "predicted_step".
  void sum_up();

 private:
  void say_predicted();
  void say_overload(const StepRecord& record);
  void write(const StepRecord& record, const RunPosition& at, const StepRow& row, const std::vector<engine::ExpertLoad>& loads);

  StepLogOptions options_;
  RunOutput& output_;
  int64_t began_at_ = 0;
  double flops_per_s_ = 0;
  struct SinceLine {
    int64_t steps = 0, tokens = 0;
    double seconds = 0, data_seconds = 0, model_flops = 0;
  };
  SinceLine since_line_;
  LossStatistics statistics_;
  ExposedTotals exposed_;
  std::vector<double> step_seconds_;  // behind the first, where they are predicted
  double last_loss_ = 0;
};

}  // namespace lockstep::train
