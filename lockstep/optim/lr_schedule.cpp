#include "lockstep/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/check.h"

namespace lockstep::optim {
namespace {

// Where `step` stands between `first` (0) and `last` (1).
double fraction(int64_t step, int64_t first, int64_t last) {
  if (last <= first) return step >= last ? 1.0 : 0.0;
  return std::clamp(static_cast<double>(step - first) / static_cast<double>(last - first), 0.0, 1.0);
}

}  // namespace

double learning_rate(const config::OptimizerSection& optimizer, int64_t step, int64_t steps) {
  const int64_t warmup = optimizer.warmup_steps;
  if (step < warmup) return optimizer.lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double span = optimizer.lr - optimizer.min_lr;
  const double x = fraction(step, warmup, steps - 1);
  switch (optimizer.schedule) {
    case config::LrSchedule::kConstant:
      return optimizer.lr;
    case config::LrSchedule::kLinear:
      return optimizer.lr - span * x;
    case config::LrSchedule::kCosine:
      return optimizer.min_lr + span * 0.5 * (1 + std::cos(std::numbers::pi * x));
    case config::LrSchedule::kWsd: {
      const int64_t decay_begin = std::max(warmup, steps - std::max<int64_t>(1, steps / 5));
      if (step < decay_begin) return optimizer.lr;
      return optimizer.min_lr + span * (1 - std::sqrt(fraction(step, decay_begin, steps - 1)));
    }
  }
  LOCKSTEP_CHECK(false, "unknown schedule");
}

}  // namespace lockstep::optim
