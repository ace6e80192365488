// Steps that were left out because a gradient is not finite (train.nonfinite = "skip").
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/train/run_output.h"
#include "lockstep/train/step_policy.h"

namespace lockstep::train {

class SkippedSteps : public StepPolicy {
 public:
  static constexpr int64_t kMost = 10;  // one after the other
  // `output` outlives it.
  explicit SkippedSteps(RunOutput& output) : output_(output) {}

  bool due(int64_t /*step*/) const override { return false; }
  void known(const StepRecord& /*record*/, const RunPosition& /*at*/) override { in_a_row_ = 0; }
  // The step is made anew with the next batch: the optimizer has not seen this one. DivergedError LS5001 at the last of kMost.
  void skipped(const StepRecord& record) {
    const std::string& names = record.result.skipped;
    output_.note(cat("skipped a batch at step ", record.step, ": a gradient is not finite (", names, ")"));
    output_.event("nonfinite", record.step, {{"skipped", true}, {"names", names}});
    if (++in_a_row_ == kMost)
      throw DivergedError({.code = "LS5001",
                           .what = cat("step ", record.step, ": a gradient is not finite in ", kMost,
                                       " batches one after the other (now ", names, ")"),
                           .way_out = "the weights themselves may be too large; go on from an earlier checkpoint with a lower "
                                      "optimizer.lr"});
  }

 private:
  RunOutput& output_;
  int64_t in_a_row_ = 0;
};

}  // namespace lockstep::train
