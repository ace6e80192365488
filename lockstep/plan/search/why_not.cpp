#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/plan/search/candidate.h"
#include "lockstep/plan/search/compare.h"
#include "lockstep/plan/search/legal.h"
#include "lockstep/plan/search/search.h"
#include "lockstep/plan/search/time_source.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

constexpr std::array<std::pair<const char*, double Breakdown::*>, 12> kTerms = {{{"products take", &Breakdown::products},
                                                                                 {"attention takes", &Breakdown::attention},
                                                                                 {"pointwise work takes", &Breakdown::pointwise},
                                                                                 {"recomputation takes", &Breakdown::recompute},
                                                                                 {"the optimizer takes", &Breakdown::optimizer},
                                                                                 {"the host adds", &Breakdown::host},
                                                                                 {"tensor parallelism waits", &Breakdown::tensor},
                                                                                 {"context parallelism waits", &Breakdown::context},
                                                                                 {"experts wait", &Breakdown::experts},
                                                                                 {"the pipeline waits", &Breakdown::pipeline},
                                                                                 {"data parallelism waits", &Breakdown::data},
                                                                                 {"the bubble is", &Breakdown::bubble}}};

// One digit behind the point.
std::string tenths(double value) { return number_text(std::round(10 * value) / 10); }
std::string milliseconds(double seconds) { return cat(tenths(1e3 * seconds), " ms"); }

}  // namespace

std::string difference_text(const StepEstimate& best, const StepEstimate& other) {
  std::vector<std::pair<double, std::string>> terms;
  for (const auto& [name, field] : kTerms) {
    const double more = other.breakdown.*field - best.breakdown.*field;
    if (std::abs(more) > 0.002 * best.seconds) terms.emplace_back(more, cat(name, " ", milliseconds(std::abs(more)), more > 0 ? " more" : " less"));
  }
  std::ranges::sort(terms, std::ranges::greater(), [](const auto& term) { return std::abs(term.first); });
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min<size_t>(3, terms.size()); ++i) texts.push_back(terms[i].second);
  const double share = 100 * (other.seconds / best.seconds - 1);
  const std::string head = share < 0 ? cat(tenths(-share), " % faster") : cat(tenths(share), " % slower");
  return texts.empty() ? head : cat(head, ": ", join(texts, ", "));
}

std::string why_not(const Job& job, const Candidate& candidate, const SearchResult& result) {
  const int devices = job.cluster.devices();
  if (ranks_of(candidate) != devices)
    return cat("its ", ranks_of(candidate), " ranks are not the ", devices, " devices of ", job.cluster.name.empty() ? "the cluster" : job.cluster.name);
  if (const auto reason = Legality(job.config, job.model).of(candidate)) return cat("not legal: ", reject_text(*reason));
  const config::RunConfig config = with_candidate(job.config, candidate);
  if (const auto problems = program::layout_problems(config, job.model, devices); !problems.empty()) return cat("not legal: ", problems.front().what);
  const StepEstimate estimate = job.times.step(program::make_layout(config, job.model, devices), job.cluster, job.stack, {.traffic = false});
  if (!estimate.fits) {
    const StageEstimate& worst = estimate.stages[static_cast<size_t>(estimate.worst_stage)];
    return cat("does not fit: stage ", worst.stage, " needs ", format_bytes(worst.reserved), " of ", format_bytes(job.cluster.device.memory),
               ", of them ", format_bytes(worst.parameters + worst.gradients + worst.optimizer), " of states and ", format_bytes(worst.activations),
               " of activations");
  }
  if (result.best.empty()) return "fits, and nothing better is known";
  return difference_text(result.best.front().estimate, estimate);
}

}  // namespace lockstep::plan
