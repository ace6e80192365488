#include "lockstep/train/predicted_step.h"

#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/train/exposed.h"

namespace lockstep::train {

std::string predicted_text(const PredictedStep& predicted) {
  return cat(format_duration(predicted.seconds), " a step (", format_duration(predicted.low), " to ", format_duration(predicted.high), ") by ",
             predicted.machine);
}

std::string beside_measured(const PredictedStep& predicted, double measured, int64_t steps) {
  const double off = predicted.seconds / measured - 1;
  const bool within = predicted.low <= measured && measured <= predicted.high;
  return cat("step: measured ", format_duration(measured), " (median of ", steps, "), predicted ", format_duration(predicted.seconds), ": ",
             percent(std::abs(off)), off < 0 ? " less, " : " more, ", within ? "within" : "outside", " the band of ", format_duration(predicted.low),
             " to ", format_duration(predicted.high));
}

}  // namespace lockstep::train
