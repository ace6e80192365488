// Choosing the next token from its logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::infer {

// Applied in this order, as transformers does.
struct SamplingOptions {
  double repetition_penalty = 1;  // logits of tokens seen before are divided by it, negative ones multiplied (Keskar et
                                  // al. 2019); 1 = off
  double temperature = 0;         // 0 = greedy: the largest logit, the lowest id among equals
  int64_t top_k = 0;              // only the k most likely tokens; 0 = all
  double top_p = 1;  // only the most likely tokens that together reach this probability (Holtzman et al. 2020)
  double min_p = 0;  // only tokens at least this times as likely as the most likely one (Nguyen et al. 2024)
  uint64_t seed = 1234;
};

// Holds working memory, so that a token costs no allocation.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) {}

  // The token behind `before`: a pure function of (logits, options, before). Overwrites logits where there is a penalty.
  // DataError LS1242 where the largest logit is not finite.
  int64_t pick(std::span<float> logits, std::span<const int64_t> before);

 private:
  struct Candidate {
    double weight;  // exp of the scaled logit less the largest
    int64_t id;
  };
  static bool is_before(const Candidate& a, const Candidate& b);
  void collect(std::span<const float> logits, float largest);
  void keep_most_likely(size_t count);
  void keep_top_p();
  double total() const;

  SamplingOptions options_;
  std::vector<Candidate> candidates_;
  std::vector<int64_t> seen_;
};

}  // namespace lockstep::infer
