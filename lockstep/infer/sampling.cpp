#include "lockstep/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/base/text.h"

namespace lockstep::infer {

// Most likely first; equal ones by id: one order, whatever the algorithm that finds it.
bool Sampler::is_before(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

void Sampler::collect(std::span<const float> logits, float largest) {
  const double least = options_.min_p > 0 ? std::log(options_.min_p) : -std::numeric_limits<double>::infinity();
  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    const double scaled = (static_cast<double>(logits[id]) - largest) / options_.temperature;
    if (scaled >= least) candidates_.push_back({std::exp(scaled), static_cast<int64_t>(id)});
  }
}

// Leaves the `count` most likely ones, sorted.
void Sampler::keep_most_likely(size_t count) {
  const auto end = candidates_.begin() + static_cast<ptrdiff_t>(count);
  std::partial_sort(candidates_.begin(), end, candidates_.end(), is_before);
  candidates_.resize(count);
}

double Sampler::total() const {
  return std::accumulate(candidates_.begin(), candidates_.end(), 0.0,
                         [](double sum, const Candidate& candidate) { return sum + candidate.weight; });
}

// Sorts as much as is needed, not the vocabulary.
void Sampler::keep_top_p() {
  const double wanted = options_.top_p * total();
  double sum = 0;
  size_t kept = 0, sorted = 0;
  while (kept < candidates_.size() && sum < wanted) {
    if (kept == sorted) {
      const size_t next = std::min(candidates_.size(), std::max<size_t>(64, 4 * sorted));
      const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(sorted);
      const auto end = candidates_.begin() + static_cast<ptrdiff_t>(next);
      if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), is_before);
      std::sort(begin, end, is_before);
      sorted = next;
    }
    sum += candidates_[kept++].weight;
  }
  candidates_.resize(std::max<size_t>(1, kept));
}

int64_t Sampler::pick(std::span<float> logits, std::span<const int64_t> before) {
  LOCKSTEP_CHECK(!logits.empty(), "no logits");
  if (options_.repetition_penalty != 1) {
    seen_.assign(before.begin(), before.end());
    std::sort(seen_.begin(), seen_.end());
    seen_.erase(std::unique(seen_.begin(), seen_.end()), seen_.end());
    const auto penalty = static_cast<float>(options_.repetition_penalty);
    for (const int64_t id : seen_) {
      float& logit = logits[static_cast<size_t>(id)];
      logit = logit < 0 ? logit * penalty : logit / penalty;
    }
  }
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(*largest))
    throw DataError({.code = "LS1242",
                     .what = cat("the model's logits are not finite (", *largest, ") after ", before.size(), " tokens"),
                     .way_out = "its parameters are damaged or the training diverged: take an earlier checkpoint"});
  if (options_.temperature <= 0) return largest - logits.begin();
  collect(logits, *largest);
  if (options_.top_k > 0 && options_.top_k < static_cast<int64_t>(candidates_.size()))
    keep_most_likely(static_cast<size_t>(options_.top_k));
  if (options_.top_p < 1) keep_top_p();

  constexpr double kTwoTo53 = 9007199254740992.0;
  const uint64_t bits = RandomStream(options_.seed, "sampling").bits(before.size());
  double left = static_cast<double>(bits >> 11) / kTwoTo53 * total();
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0) return candidate.id;
  }
  return candidates_.back().id;  // rounding only
}

}  // namespace lockstep::infer
