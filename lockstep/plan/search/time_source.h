// What a search asks of lockstep/plan/time, all of it; and the search by another source of times, as tests have one.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/plan/search/search.h"

namespace lockstep::plan {

struct TimeSource {
  std::function<LayerSeconds(const program::Layout& layout, int layer, int rank, const Placement& placement, const Stack& stack, const EstimateOptions& options)> layer{};
  std::function<StepEstimate(const program::Layout& layout, const Cluster& cluster, const Stack& stack, const EstimateOptions& options)> step{};
  std::vector<std::pair<std::string, double Stack::*>> constants{};
  double host_bandwidth = 300e9;  // bytes/s of a node's host memory, where an optimizer runs there
};
TimeSource planner_times();

// A job, the cluster under it and what says how long things take. Referred to: all of it outlives what is made of it.
struct Job {
  const config::RunConfig& config;
  const arch::ModelConfig& model;
  const Cluster& cluster;
  const Stack& stack;
  const TimeSource& times;
};
SearchResult search_layouts(const Job& job, const SearchOptions& options);
std::string why_not(const Job& job, const Candidate& candidate, const SearchResult& result);

}  // namespace lockstep::plan
