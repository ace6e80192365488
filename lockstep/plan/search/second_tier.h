// Candidates of the first tier estimated by the walk of estimate_step, one by one, within a bound of work.
#pragma once

#include <map>
#include <vector>

#include "lockstep/plan/search/first_tier.h"

namespace lockstep::plan {

// Microseconds, about, that the walk of a candidate takes on a core of 2023: it grows with the actions of its program and with the rows of the
// parameter tables of its ranks. A function of the candidate, so that a search does the same on every machine.
double walk_work(const arch::ModelConfig& model, const Candidate& candidate, int64_t microbatches);

class SecondTier {
 public:
  // `options`: of all estimates, without traffic and spans. `room`: bytes of a device that a layout may take; 0: nobody says.
  SecondTier(const Job& job, QuickTier& tier, const EstimateOptions& options, double room) : job_(job), tier_(tier), options_(options), room_(room) {
    options_.traffic = options_.spans = false;
  }

  // Of `ranked`, fastest first, until `most` are found to fit, or beyond `work` once there are `least`.
  struct Bounds {
    size_t least = 3, most = 64;
    double work = 0;  // walk_work
  };
  std::vector<Found> simulate(const std::vector<Ranked>& ranked, const Bounds& bounds);
  const std::map<Reject, int64_t>& rejected() const { return rejected_; }
  const std::vector<NearMiss>& misses() const { return misses_; }

 private:
  std::optional<Found> estimate(const Ranked& ranked);

  const Job job_;
  QuickTier& tier_;
  EstimateOptions options_;
  const double room_;
  std::map<Reject, int64_t> rejected_;
  std::vector<NearMiss> misses_;
};

}  // namespace lockstep::plan
