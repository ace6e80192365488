// The load of experts over the run, on RUN/report.html.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/plan/expert_load.h"
#include "lockstep/train/run_directory.h"
#include "lockstep/train/run_output.h"
#include "lockstep/train/step_policy.h"

namespace lockstep::train {

class ExpertPage : public StepPolicy {
 public:
  // All outlive it. On ranks that write no page, and without experts, it does nothing.
  ExpertPage(const RunDirectory& directory, const program::Layout& layout, RunOutput& output, bool writes);

  bool due(int64_t /*step*/) const override { return false; }
  void known(const StepRecord& record, const RunPosition& at) override;
  // The run goes on behind step `step`: what it has logged until there comes first.
  void resume(int64_t step);
  // The section of the page, which is made where no step has been traced. A page that cannot be written is a warning.
  void write() const;

 private:
  const RunDirectory& directory_;
  const program::Layout& layout_;
  RunOutput& output_;
  std::optional<plan::LoadHistory> history_;
};

}  // namespace lockstep::train
