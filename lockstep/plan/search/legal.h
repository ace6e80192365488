// Which candidates a job can run: the relations of program::layout_problems as arithmetic on a few numbers, so that a search can ask it a
// million times a second.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/plan/search/search.h"

namespace lockstep::plan {

class Legality {
 public:
  Legality(const config::RunConfig& config, const arch::ModelConfig& model);

  // The first relation that does not hold; nothing where the candidate is legal. What further keys of the configuration say beside it
  // (Reject::kOther) is known here as far as it depends on the candidate by a number: program::layout_problems has the last word.
  std::optional<Reject> of(const Candidate& candidate) const;

  // Parts of it, each with what it needs: a search leaves out all that is beside one that does not hold.
  std::optional<Reject> tensor(int tp) const;
  std::optional<Reject> sequence(int tp, int cp) const;
  std::optional<Reject> stages(int pp, config::ScheduleKind schedule, int virtual_stages) const;
  std::optional<Reject> grid(const Candidate& candidate) const;     // experts over ep and etp
  std::optional<Reject> experts(const Candidate& candidate) const;  // that, and how tokens come to them
  std::optional<Reject> batch(const Candidate& candidate) const;
  std::optional<Reject> schedule(const Candidate& candidate) const;  // beside the microbatches, and beside other keys

  // Of a legal candidate.
  int64_t microbatches(const Candidate& candidate) const { return batch_ / candidate.dp / candidate.micro_batch; }
  // Its steps update before they know the gradient norm, and keep what takes that back (config::pipeline_choice).
  bool post_validates(const Candidate& candidate) const;

 private:
  std::optional<Reject> dispatch(const Candidate& candidate) const;
  bool against_post_validation(const Candidate& candidate) const;

  int64_t heads_ = 0, key_heads_ = 0;        // 0: no layer has attention
  int64_t state_heads_ = 0, state_groups_ = 1, norm_groups_ = 1;
  int64_t layers_ = 0;
  int64_t experts_ = 0, expert_ffn_ = 0;
  int64_t batch_ = 0, length_ = 0;
  bool whole_only_ = false, whole_sequences_ = false;  // of some branch (arch::BranchKind)
  bool server_ = false, muon_ = false, never_validates_late_ = false;
  config::ParallelSection parallel_{};
  config::MoeSection moe_{};
};

}  // namespace lockstep::plan
