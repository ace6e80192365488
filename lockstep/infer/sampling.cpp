#include "lockstep/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/base/random.h"

namespace lockstep::infer {
namespace {

struct Candidate {
  double weight;  // exp of the scaled logit less the largest
  int64_t id;
};

// Most likely first; equal ones by id, so that the order does not depend on the sort.
std::vector<Candidate> ranked(std::span<const float> logits, double temperature) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  std::vector<Candidate> candidates(logits.size());
  for (size_t id = 0; id < logits.size(); ++id)
    candidates[id] = {std::exp((static_cast<double>(logits[id]) - largest) / temperature), static_cast<int64_t>(id)};
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  });
  return candidates;
}

double total(const std::vector<Candidate>& candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const Candidate& candidate) { return sum + candidate.weight; });
}

void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  const double wanted = top_p * total(candidates);
  double sum = 0;
  size_t kept = 0;
  while (kept < candidates.size() && sum < wanted) sum += candidates[kept++].weight;
  candidates.resize(std::max<size_t>(1, kept));
}

}  // namespace

int64_t pick_token(std::span<const float> logits, const SamplingOptions& options, int64_t position) {
  LOCKSTEP_CHECK(!logits.empty(), "no logits");
  if (options.temperature <= 0) return std::max_element(logits.begin(), logits.end()) - logits.begin();
  std::vector<Candidate> candidates = ranked(logits, options.temperature);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(candidates.size()))
    candidates.resize(static_cast<size_t>(options.top_k));
  if (options.top_p < 1) keep_top_p(candidates, options.top_p);

  constexpr double kTwoTo53 = 9007199254740992.0;
  const uint64_t bits = RandomStream(options.seed, "sampling").bits(static_cast<uint64_t>(position));
  double left = static_cast<double>(bits >> 11) / kTwoTo53 * total(candidates);
  for (const Candidate& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0) return candidate.id;
  }
  return candidates.back().id;  // rounding only
}

}  // namespace lockstep::infer
