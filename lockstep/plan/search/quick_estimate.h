// The first tier of the search: seconds and bytes of a candidate from what is known of its layers, its pipeline and its mesh, each of which
// many candidates share. A million candidates a second on one core; memory within 1 % of program::RankMemory, seconds near enough to the
// walk of estimate_step to say which candidates are worth it.
#pragma once

#include <limits>

#include "lockstep/plan/search/data_times.h"
#include "lockstep/plan/search/layer_pieces.h"
#include "lockstep/plan/search/legal.h"
#include "lockstep/plan/search/pipeline_shape.h"
#include "lockstep/plan/search/quick_memory.h"
#include "lockstep/plan/search/quick_time.h"

namespace lockstep::plan {

class QuickTier {
 public:
  // `legal`: any candidate that the job can run, with at most as many ranks as the cluster has devices; what is asked later is such, too.
  // All that is referred to outlives this object. ConfigError LS1101 where the configuration contradicts itself, whatever the candidate.
  QuickTier(const Job& job, const EstimateOptions& options, const Candidate& legal);

  QuickTier(const QuickTier&) = delete;
  QuickTier& operator=(const QuickTier&) = delete;

  // From here on the job's constants are these.
  void change_stack(const Stack& stack);

  // Of a step of `enough` or more it says no more than that.
  double seconds(const Candidate& candidate, double enough = std::numeric_limits<double>::infinity());
  // What is allocated. Of a device that must have more than `enough` it says no more than that.
  QuickMemory memory(const Candidate& candidate, double enough = std::numeric_limits<double>::infinity());
  QuickEstimate estimate(const Candidate& candidate);
  // Seconds below which no candidate is that differs in schedule, virtual stages, recomputation, zero and offload alone.
  double least_seconds(const Candidate& candidate);
  // The same of candidates that differ in zero and offload alone.
  double least_of_order(const Candidate& candidate);
  // The same of candidates that differ from those of least_seconds in ep and etp, too; known sooner. Of a model without experts it is that.
  double least_of_grids(const Candidate& candidate);

  // What a device must have, where so much of it is allocated.
  double reserved(double allocated) const { return allocated * (1 + stack_.fragmentation) + stack_.reserved; }
  const Legality& legality() const { return legality_; }

 private:
  LayerSet& layers_of(const Candidate& candidate);
  int cut_of(int profile, int stages);
  const PipelineShape& shape_of_candidate(const Candidate& candidate, const LayerSet& layers);
  const DataTimes& data_of(const Candidate& candidate);
  GroupShards shards_of(const Candidate& candidate) const;
  template <typename Of>
  double of_all_layers(const Candidate& candidate, const Of& seconds) const;

  Stack stack_;  // its own: job_ refers to it
  const Job job_;
  const EstimateOptions options_;
  const Legality legality_;
  LayerPieces pieces_;
  MemoryForm memory_;
  TimeForm time_;
  std::vector<std::vector<int>> cuts_;  // that are different: first layers of stages
  Lookup<int> cut_of_;            // by profile and stages: which of them
  Lookup<PipelineShape> shapes_;  // by cut, schedule, ranks, virtual stages and microbatches
  Lookup<DataTimes> data_;        // by mesh, ep and etp
};

}  // namespace lockstep::plan
