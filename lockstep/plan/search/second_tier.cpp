#include "lockstep/plan/search/second_tier.h"

#include <algorithm>
#include <utility>

#include "lockstep/config/suggestion.h"
#include "lockstep/plan/search/candidate.h"
#include "lockstep/plan/search/reasons.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/predict/steps.h"

namespace lockstep::plan {
namespace {

constexpr int kMostRefused = 64;    // in a row: then a key of the configuration speaks against all
constexpr size_t kMostMisses = 5;

bool same_mesh(const Candidate& a, const Candidate& b) {
  return a.tp == b.tp && a.pp == b.pp && a.cp == b.cp && a.ep == b.ep && a.etp == b.etp;
}

// The best of each mesh, then the second of each, and so on: what the first tier cannot tell apart is more alike inside a mesh than between two.
std::vector<const Ranked*> in_turns(const std::vector<Ranked>& ranked) {
  std::vector<std::pair<int, const Ranked*>> turns;
  for (const Ranked& one : ranked) {
    const auto alike = std::ranges::count_if(turns, [&](const auto& other) { return same_mesh(one.candidate, other.second->candidate); });
    turns.emplace_back(static_cast<int>(alike), &one);
  }
  std::ranges::stable_sort(turns, {}, [](const auto& turn) { return turn.first; });
  std::vector<const Ranked*> ordered;
  for (const auto& [turn, one] : turns) ordered.push_back(one);
  return ordered;
}

}  // namespace

double walk_work(const arch::ModelConfig& model, const Candidate& candidate, int64_t microbatches) {
  constexpr double kStart = 3000, kRow = 15, kAction = 2;
  const double layers = static_cast<double>(model.layers) + 2, stages = static_cast<double>(candidate.pp) * candidate.virtual_stages;
  const double experts = model.has_experts() ? 3 * static_cast<double>(model.experts.count) / candidate.ep : 0;
  const double of_microbatch = (candidate.recompute == config::Recompute::kNone ? 2 : 3) * layers + 4 * stages;
  // Of a long step two shorter ones are walked (program::judged_steps).
  const double longest = std::max(program::kLongStep / of_microbatch, 12 * stages);
  // Updates ahead of the norm are taken back in a later step: three are walked.
  const bool late = candidate.schedule == config::ScheduleKind::kZbH2 || candidate.schedule == config::ScheduleKind::kZbV;
  return kStart + kRow * layers * (9 + experts) + (late ? 2 : 1) * kAction * of_microbatch * std::min(static_cast<double>(microbatches), longest);
}

std::optional<Found> SecondTier::estimate(const Ranked& ranked) {
  Found found{.candidate = ranked.candidate, .quick = ranked.quick, .config = with_candidate(job_.config, ranked.candidate)};
  const auto ranks = static_cast<int>(ranks_of(ranked.candidate));
  if (const auto problems = program::layout_problems(found.config, job_.model, ranks); !problems.empty()) {
    ++rejected_[Reject::kOther];
    if (misses_.size() < kMostMisses) misses_.push_back({.candidate = ranked.candidate, .reason = Reject::kOther, .text = problems.front().what});
    return std::nullopt;
  }
  const program::Layout layout = program::make_layout(found.config, job_.model, ranks);
  found.estimate = job_.times.step(layout, job_.cluster, job_.stack, options_);
  if (found.estimate.fits && (room_ <= 0 || found.estimate.most_reserved() <= room_)) return found;
  ++rejected_[Reject::kMemory];
  const StageEstimate& worst = found.estimate.stages.at(static_cast<size_t>(found.estimate.worst_stage));
  if (misses_.size() < kMostMisses)
    misses_.push_back({.candidate = ranked.candidate, .reason = Reject::kMemory, .text = shortage_text(worst, room_, job_.cluster)});
  return std::nullopt;
}

std::vector<Found> SecondTier::simulate(const std::vector<Ranked>& ranked, const Bounds& bounds) {
  std::vector<Found> found;
  double work = 0;
  int refused = 0;
  for (const Ranked* one : in_turns(ranked)) {
    const double more = walk_work(job_.model, one->candidate, tier_.legality().microbatches(one->candidate));
    if (found.size() >= bounds.most || (found.size() >= bounds.least && work + more > bounds.work)) break;
    work += more;
    std::optional<Found> of_one = estimate(*one);
    refused = of_one ? 0 : refused + 1;
    if (of_one) found.push_back(std::move(*of_one));
    if (refused >= kMostRefused) break;
  }
  std::ranges::stable_sort(found, {}, [](const Found& one) { return one.estimate.seconds; });
  return found;
}

}  // namespace lockstep::plan
