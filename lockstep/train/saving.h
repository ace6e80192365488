// When a run saves, and what it tells of its checkpoints.
#pragma once

#include "lockstep/checkpoint/save.h"
#include "lockstep/config/run_config.h"
#include "lockstep/train/run_output.h"
#include "lockstep/train/step_policy.h"

namespace lockstep::train {

struct SavingOptions {
  config::Interval every{};
  int64_t total = 0;  // steps of the run
  // Saves, or begins to; what has ended by then.
  std::function<std::optional<checkpoint::SaveResult>()> write{};
  std::function<std::optional<checkpoint::SaveResult>()> poll{}, wait{};  // as those of checkpoint::Saver
  Now now = std::chrono::steady_clock::now;
};

class Saving : public StepPolicy {
 public:
  // `output` outlives it.
  Saving(SavingOptions options, RunOutput& output) : options_(std::move(options)), output_(output) {}

  // Steps follow; the run goes on from the checkpoint of `saved`, if from any.
  void begin(std::optional<int64_t> saved);
  // Every so many steps, but for the last, which is saved by who ends the run. Clocks differ between ranks: overdue().
  bool due(int64_t step) const override;
  // By this rank's clock.
  bool overdue() const { return timer_.rings(options_.now()); }
  // Tells of a save that has ended; then saves where it is due.
  void settled(const RunPosition& at) override;
  // Unless this step is saved already.
  void save(const RunPosition& at);
  // Waits for what is in flight.
  void wait() { report(options_.wait()); }

 private:
  void report(const std::optional<checkpoint::SaveResult>& saved);

  SavingOptions options_;
  RunOutput& output_;
  std::optional<int64_t> saved_at_;
  Timer timer_;  // since the last save
  bool warned_of_latest_ = false;
};

}  // namespace lockstep::train
