// The candidates that a search looks at: all values of each field that the devices, the batch and the model can have.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/plan/search/search.h"

namespace lockstep::plan {

// Degrees are divisors of the devices; micro-batches divisors of a rank's batch, up to what a pass of kMostTokens takes, and of no common factor
// with cp: without it on both a rank has as many tokens in as many microbatches, and less to communicate. ep divides the experts, and etp tp;
// schedules are all but naive and gpipe, which 1f1b beats in time and in memory, with up to kMostVirtualStages; rows are cut with tp,
// which costs nothing. What is fixed has that value alone, one of these or not.
class CandidateSpace {
 public:
  // `cluster`: groups that share out states are all data ranks, those of a domain or those of a leaf.
  CandidateSpace(const config::RunConfig& config, const arch::ModelConfig& model, const Cluster& cluster, const Fixed& fixed)
      : config_(config), model_(model), cluster_(cluster), fixed_(fixed) {}

  static constexpr int64_t kMostTokens = int64_t{1} << 17;
  static constexpr int kMostVirtualStages = 12;

  // Degrees of tp, cp, pp and dp whose product is `devices`; where what is fixed has no such, that alone.
  std::vector<Candidate> meshes(int devices) const;
  std::vector<std::pair<int, int>> expert_grids(const Candidate& mesh) const;  // ep, etp
  std::vector<int> micro_batches(const Candidate& mesh) const;

  struct Order {
    config::ScheduleKind schedule = config::ScheduleKind::kOneFOneB;
    int virtual_stages = 1;
  };
  std::vector<Order> orders(int pp) const;
  std::vector<config::Recompute> recomputes() const;
  // Ways to share states out: the stage of ZeRO, and groups of data ranks that each hold all shards.
  struct Sharing {
    int zero = 0;
    int replicate = 1;
  };
  std::vector<Sharing> sharings(const Candidate& mesh) const;
  std::vector<bool> offloads() const;
  // Candidates of one mesh, grid of experts and micro-batch.
  int64_t inner(const Candidate& mesh) const;

 private:
  std::vector<int> replicates(const Candidate& mesh) const;

  const config::RunConfig& config_;
  const arch::ModelConfig& model_;
  const Cluster& cluster_;
  const Fixed& fixed_;
};

}  // namespace lockstep::plan
