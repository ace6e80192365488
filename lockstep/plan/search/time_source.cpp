#include "lockstep/plan/search/time_source.h"

#include "lockstep/plan/time/action_seconds.h"

namespace lockstep::plan {

TimeSource planner_times() { return {.layer = layer_seconds, .step = estimate_step, .constants = stack_constants(), .host_bandwidth = kHostBandwidth}; }

SearchResult search_layouts(const config::RunConfig& config, const arch::ModelConfig& model, const Cluster& cluster, const Stack& stack, const SearchOptions& options) {
  const TimeSource times = planner_times();
  return search_layouts(Job{.config = config, .model = model, .cluster = cluster, .stack = stack, .times = times}, options);
}

std::string why_not(const config::RunConfig& config, const arch::ModelConfig& model, const Cluster& cluster, const Stack& stack, const Candidate& candidate, const SearchResult& result) {
  const TimeSource times = planner_times();
  return why_not(Job{.config = config, .model = model, .cluster = cluster, .stack = stack, .times = times}, candidate, result);
}

}  // namespace lockstep::plan
