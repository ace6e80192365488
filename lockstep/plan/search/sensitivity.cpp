#include "lockstep/plan/search/sensitivity.h"

#include <algorithm>
#include <limits>

namespace lockstep::plan {
namespace {

constexpr double kShare = 0.1;

// Seconds of each of `best` on another stack; infinite where it does not fit there.
class Changed {
 public:
  Changed(const Job& job, QuickTier& tier, const std::vector<Found>& best) : job_(job), tier_(tier), best_(best), now_(quick(job.stack)) {}
  Changed(const Changed&) = delete;
  Changed& operator=(const Changed&) = delete;
  ~Changed() { tier_.change_stack(job_.stack); }

  std::vector<double> seconds(const Stack& stack) const {
    std::vector<double> then = quick(stack);
    for (size_t i = 0; i < then.size(); ++i) {
      then[i] = best_[i].estimate.seconds * then[i] / now_[i];
      if (!fits(stack, best_[i].estimate)) then[i] = std::numeric_limits<double>::infinity();
    }
    return then;
  }

 private:
  std::vector<double> quick(const Stack& stack) const {
    tier_.change_stack(stack);
    std::vector<double> seconds;
    for (const Found& found : best_) seconds.push_back(tier_.seconds(found.candidate));
    return seconds;
  }
  bool fits(const Stack& stack, const StepEstimate& estimate) const {
    const double room = job_.cluster.device.memory;
    return room <= 0 || std::ranges::all_of(estimate.stages, [&](const StageEstimate& stage) {
             return stage.peak * (1 + stack.fragmentation) + stack.reserved <= room;
           });
  }

  const Job& job_;
  QuickTier& tier_;
  const std::vector<Found>& best_;
  const std::vector<double> now_;
};

}  // namespace

std::vector<Sensitivity> sensitivities(const Job& job, QuickTier& tier, const std::vector<Found>& best) {
  std::vector<Sensitivity> found;
  if (best.empty()) return found;
  const Changed changed(job, tier, best);
  for (const auto& [name, constant] : job.times.constants) {
    if (job.stack.*constant == 0) continue;
    Sensitivity one{.constant = name};
    for (const double share : {-kShare, kShare}) {
      Stack stack = job.stack;
      stack.*constant *= 1 + share;
      const std::vector<double> seconds = changed.seconds(stack);
      const double fastest = *std::ranges::min_element(seconds);
      one.order_changes |= fastest < seconds[0] * (1 - kSameStep);
      // Where the best one does not fit any more its own time is what it was.
      const double change = seconds[0] < std::numeric_limits<double>::infinity() ? seconds[0] / best[0].estimate.seconds - 1 : 0;
      (share < 0 ? one.minus : one.plus) = change;
    }
    found.push_back(std::move(one));
  }
  return found;
}

}  // namespace lockstep::plan
