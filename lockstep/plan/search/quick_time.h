// Seconds of a step by closed form: the pipeline's forms (Narayanan et al. 2021; Qi et al. 2023, 2024; bubbles as plan/bubble.h has them) over
// the times of stages, with what of gradients and parameters computing does not hide.
#pragma once

#include <array>
#include <limits>
#include <vector>

#include "lockstep/plan/search/data_times.h"
#include "lockstep/plan/search/pipeline_shape.h"
#include "lockstep/plan/search/quick_memory.h"

namespace lockstep::plan {

struct TimeInput {
  const Candidate& candidate;
  const LayerSet& layers;  // timed, with bytes
  const std::vector<UnitSizes>& units;
  const PipelineShape& shape;
  const DataTimes& data;
  GroupShards shards{};
  double microbatches = 1;
};

// Keeps its working space from call to call: nothing is allocated.
class TimeForm {
 public:
  explicit TimeForm(const Job& job) : job_(job) {}
  // Of a step of `enough` or more it says no more than that.
  double of(const TimeInput& input, double enough = std::numeric_limits<double>::infinity());

 private:
  void make_places(const TimeInput& input);
  LayerTimes of_group(const RankGroup& group) const;
  double pipeline_seconds(const TimeInput& input);
  double data_seconds(const TimeInput& input) const;
  double update_seconds(const TimeInput& input) const;

  const Job job_;
  std::vector<LayerTimes> places_;  // of one layer of each place, with what it waits for of its parameters
};

// The least that filling and draining the pipeline make of its microbatches alone, whatever its stages hold: a factor.
double least_fill(const Candidate& candidate, double microbatches);

// What all ranks of a cluster but their devices lose by waiting for each other: a factor.
double straggle_factor(const Job& job, int64_t ranks);

}  // namespace lockstep::plan
