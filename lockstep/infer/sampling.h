// Choosing the next token from its logits.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::infer {

struct SamplingOptions {
  double temperature = 0;  // 0 = greedy: the largest logit, the lowest id among equals
  int64_t top_k = 0;       // only the k most likely tokens; 0 = all
  double top_p = 1;        // only the most likely tokens that together reach this probability (Holtzman et al. 2020)
  uint64_t seed = 1234;
};

// The token at `position` of the sequence: a pure function of (logits, options, position).
int64_t pick_token(std::span<const float> logits, const SamplingOptions& options, int64_t position);

}  // namespace lockstep::infer
