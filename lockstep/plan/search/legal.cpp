#include "lockstep/plan/search/legal.h"

#include <algorithm>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/arch/layer_letters.h"
#include "lockstep/config/check.h"
#include "lockstep/config/fields.h"
#include "lockstep/plan/search/candidate.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using config::ScheduleKind;

constexpr int64_t kMostCuts = int64_t{1} << 29;  // as program::layout_problems has it

bool stages_apart(ScheduleKind kind) { return kind == ScheduleKind::kInterleaved || config::v_shaped(kind); }
bool divides_either_way(int64_t a, int64_t b) { return a % b == 0 || b % a == 0; }

std::optional<Reject> unless(bool holds, Reject reason) { return holds ? std::nullopt : std::optional(reason); }

}  // namespace

Legality::Legality(const config::RunConfig& config, const arch::ModelConfig& model)
    : heads_(arch::has_attention(model) ? model.heads : 0),
      key_heads_(heads_ > 0 ? model.kv_heads : 0),
      state_heads_(model.state_space.heads),
      state_groups_(std::max<int64_t>(1, model.state_space.groups)),
      norm_groups_(std::max<int64_t>(1, model.state_space.norm_groups)),
      layers_(model.layers),
      experts_(model.experts.count),
      expert_ffn_(model.experts.ffn),
      batch_(config.train.global_batch),
      length_(config.train.seq_len),
      server_(config.parallel.data_parallel == config::DataParallel::kParameterServer),
      muon_(config::uses_muon(config)),
      never_validates_late_(config.train.nonfinite == config::NonFinite::kSkip || server_ || config.moe.scope == config::MoeScope::kLastStep),
      parallel_(config.parallel),
      moe_(config.moe) {
  for (const arch::BlockSpec& block : model.blocks)
    for (const arch::Branch& branch : block) {
      const arch::BranchKind& kind = arch::branch_kind(branch.kind);
      whole_only_ |= kind.whole_only;
      whole_sequences_ |= kind.whole_sequences;
    }
}

std::optional<Reject> Legality::tensor(int tp) const {
  if (tp > 1 && whole_only_) return Reject::kHeads;
  if (heads_ > 0 && heads_ % tp != 0) return Reject::kHeads;
  if (heads_ > 0 && !divides_either_way(key_heads_, tp)) return Reject::kKeyHeads;
  if (state_heads_ == 0) return std::nullopt;
  if (state_heads_ % tp != 0) return Reject::kHeads;
  return unless(divides_either_way(state_groups_, tp) && (norm_groups_ == 1 || norm_groups_ % tp == 0), Reject::kKeyHeads);
}

std::optional<Reject> Legality::sequence(int tp, int cp) const {
  if (cp == 1) return std::nullopt;
  if (whole_sequences_) return Reject::kSequence;
  const config::ContextKind kind = parallel_.context;
  const bool nested = kind == config::ContextKind::k2d;
  const int64_t inner = parallel_.context_inner;
  if (nested && (inner <= 1 || inner >= cp || cp % inner != 0)) return Reject::kSequence;
  if (heads_ == 0 && kind != config::ContextKind::kRing) return Reject::kSequence;
  const bool exchanges_heads = nested || kind == config::ContextKind::kAllToAll;
  if (exchanges_heads && heads_ > 0 && (nested ? inner : cp) > heads_ / tp) return Reject::kSequence;
  const int64_t pieces = parallel_.context_split == config::ContextSplit::kZigzag ? 2 * int64_t{cp} : cp;
  if (length_ < pieces) return Reject::kSequence;
  return unless((experts_ == 0 && state_heads_ == 0) || length_ % pieces == 0, Reject::kSequence);
}

std::optional<Reject> Legality::stages(int pp, ScheduleKind schedule, int virtual_stages) const {
  if (schedule == ScheduleKind::kFile) return Reject::kLayers;
  if (pp == 1) return unless(schedule == ScheduleKind::kOneFOneB && virtual_stages == 1, Reject::kLayers);
  if (config::v_shaped(schedule) ? virtual_stages != 2 : virtual_stages > 1 && !stages_apart(schedule)) return Reject::kLayers;
  const int64_t all = int64_t{pp} * virtual_stages, layers = layers_ + 2;
  return unless(all <= layers && all * layers * layers / 2 <= kMostCuts, Reject::kLayers);
}

std::optional<Reject> Legality::grid(const Candidate& candidate) const {
  const int64_t group = int64_t{candidate.ep} * candidate.etp;
  if (experts_ == 0) return unless(group == 1, Reject::kExperts);
  if (experts_ % candidate.ep != 0 || (expert_ffn_ > 0 && expert_ffn_ % candidate.etp != 0)) return Reject::kExperts;
  if (ranks_of_stage(candidate) % group != 0) return Reject::kExperts;
  return unless(!server_ || (group == 1 && candidate.tp == 1), Reject::kExperts);
}

std::optional<Reject> Legality::experts(const Candidate& candidate) const {
  if (const auto reason = grid(candidate)) return reason;
  return candidate.ep * candidate.etp > 1 ? dispatch(candidate) : std::nullopt;
}

std::optional<Reject> Legality::dispatch(const Candidate& candidate) const {
  const int64_t group = int64_t{candidate.ep} * candidate.etp, node = parallel_.ranks_per_node;
  const bool all_to_all = parallel_.dispatcher == config::Dispatcher::kAllToAll;
  if (moe_.static_buffers && (moe_.imbalance_limit || !all_to_all)) return Reject::kExperts;
  if (parallel_.dispatcher == config::Dispatcher::kHierarchical ? node <= 1 || node >= group || group % node != 0 : node != 0) return Reject::kExperts;
  if (moe_.imbalance_limit && candidate.pp > 1 && candidate.zero == 3 && weights_apart(candidate.schedule)) return Reject::kExperts;
  if (!parallel_.overlap_experts) return std::nullopt;
  if (!parallel_.overlap || !all_to_all || moe_.imbalance_limit || candidate.zero == 3) return Reject::kExperts;
  return unless(config::pairs_of(candidate.schedule, candidate.pp, microbatches(candidate)) != config::Pairs::kNone, Reject::kExperts);
}

std::optional<Reject> Legality::batch(const Candidate& candidate) const {
  const int64_t pass = int64_t{candidate.dp} * candidate.micro_batch;
  if (pass > batch_ || batch_ % pass != 0) return Reject::kBatch;
  if (candidate.zero > 0 && candidate.dp % candidate.dp_replicate != 0) return Reject::kBatch;
  return unless(batch_ / pass <= program::kMostActions / (2 * (layers_ + 2)), Reject::kBatch);
}

std::optional<Reject> Legality::schedule(const Candidate& candidate) const {
  if (candidate.pp > 1 && candidate.schedule == ScheduleKind::kInterleaved && microbatches(candidate) % candidate.pp != 0) return Reject::kBatch;
  if (server_ && (candidate.zero > 0 || candidate.offload_optimizer)) return Reject::kOther;
  const bool late = candidate.pp > 1 && parallel_.post_validation == config::PostValidation::kOn;
  return unless(!late || !against_post_validation(candidate), Reject::kOther);
}

std::optional<Reject> Legality::of(const Candidate& candidate) const {
  if (ranks_of(candidate) > config::kMostRanks) return Reject::kDomain;
  if (const auto reason = tensor(candidate.tp)) return reason;
  if (const auto reason = sequence(candidate.tp, candidate.cp)) return reason;
  if (const auto reason = stages(candidate.pp, candidate.schedule, candidate.virtual_stages)) return reason;
  if (const auto reason = batch(candidate)) return reason;
  if (const auto reason = experts(candidate)) return reason;
  return schedule(candidate);
}

bool Legality::against_post_validation(const Candidate& candidate) const {
  const bool matrices = muon_ && (candidate.tp > 1 || candidate.etp > 1 || candidate.zero > 0);
  return never_validates_late_ || matrices || candidate.zero == 3 || candidate.offload_optimizer;
}

bool Legality::post_validates(const Candidate& candidate) const {
  if (candidate.pp == 1) return false;
  if (parallel_.post_validation == config::PostValidation::kOn) return true;
  const bool gains = candidate.schedule == ScheduleKind::kZbH2 || candidate.schedule == ScheduleKind::kZbV;
  return parallel_.post_validation == config::PostValidation::kAuto && gains && !against_post_validation(candidate);
}

}  // namespace lockstep::plan
