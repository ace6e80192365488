#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/plan/search/candidate.h"
#include "lockstep/plan/search/reasons.h"
#include "lockstep/plan/search/time_source.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

constexpr size_t kMostProblems = 3;

std::string illegal_text(const std::vector<config::LayoutProblem>& problems) {
  std::vector<std::string> whats;
  for (const config::LayoutProblem& problem : problems) whats.push_back(problem.what);
  const size_t more = whats.size() > kMostProblems ? whats.size() - kMostProblems : 0;
  whats.resize(whats.size() - more);
  return cat("illegal: ", join(whats, "; "), more > 0 ? cat("; and ", more, " more") : "");
}

// What of the devices' links its groups ask for, in so far as it makes a difference.
std::vector<std::string> notes(const Candidate& candidate, const Candidate& best, const Cluster& cluster, int64_t microbatches) {
  std::vector<std::string> found;
  const int64_t inner = int64_t{candidate.tp} * candidate.cp, group = int64_t{candidate.ep} * candidate.etp;
  const auto leaves = [&](int64_t ranks) { return ranks > cluster.domain; };
  if (leaves(candidate.tp) && !leaves(best.tp))
    found.push_back(cat("its tensor parallel ranks do not fit a domain of ", cluster.domain, " devices and meet over NICs in every layer"));
  else if (leaves(inner) && !leaves(int64_t{best.tp} * best.cp) && candidate.cp > 1)
    found.push_back(cat("tp x cp = ", inner, " ranks do not fit a domain of ", cluster.domain, " devices: keys and values go over NICs"));
  if (group > 1 && leaves(group) && !leaves(int64_t{best.ep} * best.etp))
    found.push_back(cat("ep x etp = ", group, " ranks do not fit a domain of ", cluster.domain, " devices: tokens reach their experts over NICs"));
  if (candidate.pp > 1 && microbatches < 4 * candidate.pp)
    found.push_back(cat(microbatches, microbatches == 1 ? " microbatch fills" : " microbatches fill", " a pipeline of ", candidate.pp, " ranks badly"));
  return found;
}

class Answer {
 public:
  Answer(const Job& job, const Candidate& candidate, const SearchResult& result) : job_(job), candidate_(candidate), result_(result) {}

  std::string text() const {
    const int64_t ranks = ranks_of(candidate_);
    if (ranks > config::kMostRanks || ranks > job_.cluster.devices())
      return cat("illegal: tp(", candidate_.tp, ") x cp(", candidate_.cp, ") x pp(", candidate_.pp, ") x dp(", candidate_.dp, ") = ", ranks,
                 " ranks, and the cluster has ", job_.cluster.devices(), " devices");
    const config::RunConfig config = with_candidate(job_.config, candidate_);
    if (const auto problems = program::layout_problems(config, job_.model, static_cast<int>(ranks)); !problems.empty()) return illegal_text(problems);
    EstimateOptions options = result_.estimate;
    options.traffic = options.spans = false;
    const StepEstimate estimate = job_.times.step(program::make_layout(config, job_.model, static_cast<int>(ranks)), job_.cluster, job_.stack, options);
    std::string text = estimate.fits ? "" : does_not_fit(estimate) + "; ";
    text += beside_best(estimate);
    const std::string alone = fewer_devices();
    return alone.empty() ? text : cat(text, "; ", alone);
  }

 private:
  std::string does_not_fit(const StepEstimate& estimate) const {
    const StageEstimate& worst = estimate.stages.at(static_cast<size_t>(estimate.worst_stage));
    return cat("does not fit: ", shortage_text(worst, job_.cluster.device.memory, job_.cluster), " (", parts_text(worst), ")");
  }

  // The search passes over layouts that leave so little.
  std::string leaves_little(const StepEstimate& estimate) const {
    const double memory = job_.cluster.device.memory, need = estimate.most_reserved();
    const bool little = estimate.fits && memory > 0 && need > (1 - result_.spare) * memory;
    return little ? cat("; it leaves ", share_text(1 - need / memory), " of a device's memory, less than the ", share_text(result_.spare), " that layouts were to leave") : "";
  }

  std::string beside_best(const StepEstimate& estimate) const {
    const std::string takes = cat("a step ", estimate.fits ? "takes " : "would take ", format_duration(estimate.seconds));
    if (result_.best.empty()) return takes + ", and no layout was found to fit";
    const Found& best = result_.best[0];
    if (best.candidate == candidate_) return cat("nothing speaks against it: it is the best, ", takes);
    const double share = estimate.seconds / best.estimate.seconds - 1;
    if (std::abs(share) < kSameStep) return cat("as fast as the best (", describe(best.candidate), "): ", takes);
    std::string text = cat(share < 0 ? "faster" : "slower", " than the best (", describe(best.candidate), ") by ", share_text(std::abs(share)), ": ", takes,
                           " instead of ", format_duration(best.estimate.seconds));
    if (const std::string why = difference_text(estimate, best.estimate); !why.empty()) text += "; " + why;
    text += leaves_little(estimate);
    if (share < 0) return text;
    const int64_t microbatches = job_.config.train.global_batch / candidate_.dp / candidate_.micro_batch;
    for (const std::string& note : notes(candidate_, best.candidate, job_.cluster, microbatches)) text += "; " + note;
    return text;
  }

  std::string fewer_devices() const {
    const int64_t ranks = ranks_of(candidate_);
    return ranks == job_.cluster.devices() ? "" : cat("it uses ", ranks, " of ", job_.cluster.devices(), " devices");
  }

  const Job& job_;
  const Candidate& candidate_;
  const SearchResult& result_;
};

}  // namespace

std::string why_not(const Job& job, const Candidate& candidate, const SearchResult& result) { return Answer(job, candidate, result).text(); }

}  // namespace lockstep::plan
