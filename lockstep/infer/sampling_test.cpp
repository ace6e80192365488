#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/infer/sampling.h"

namespace lockstep::infer {
namespace {

int64_t pick_token(std::vector<float> logits, const SamplingOptions& options, int64_t position) {
  return Sampler(options).pick(logits, std::vector<int64_t>(static_cast<size_t>(position)));
}

TEST(Sampling, GreedyTakesTheLargestAndTheLowestIdOfEquals) {
  EXPECT_EQ(pick_token(std::vector<float>{0, 3, 1, 3}, {}, 0), 1);
}

TEST(Sampling, FollowsTheProbabilities) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};  // 1/8, 2/8, 5/8
  std::vector<int> counts(3);
  constexpr int kDraws = 80000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(pick_token(logits, {.temperature = 1}, i))];
  for (const auto& [id, p] : {std::pair{0, 1 / 8.0}, {1, 2 / 8.0}, {2, 5 / 8.0}})
    EXPECT_NEAR(counts[static_cast<size_t>(id)], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws)) << id;
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  for (int i = 0; i < 2000; ++i) {
    EXPECT_EQ(pick_token(logits, {.temperature = 1, .top_k = 1}, i), 2);
    EXPECT_EQ(pick_token(logits, {.temperature = 1, .top_p = 0.6}, i), 2);
    EXPECT_NE(pick_token(logits, {.temperature = 1, .top_p = 0.7}, i), 0);
  }
}

TEST(Sampling, MinPCutsWhatIsUnlikely) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(pick_token(logits, {.temperature = 1, .min_p = 0.5}, i), 2);
    EXPECT_NE(pick_token(logits, {.temperature = 1, .min_p = 0.3}, i), 0);
  }
}

// Of many tokens: the nucleus by its definition, from a full sort.
TEST(Sampling, TopPOfAWideVocabulary) {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919) % 5000) * 0.002f;
  double all = 0, sum = 0;
  for (const float logit : logits) all += std::exp(logit);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  size_t kept = 0;
  while (sum < 0.3 * all) sum += std::exp(sorted[kept++]);
  const float least = sorted[kept - 1];
  bool near_the_edge = false;
  for (int i = 0; i < 5000; ++i) {
    const auto id = static_cast<size_t>(pick_token(logits, {.temperature = 1, .top_p = 0.3}, i));
    ASSERT_GE(logits[id], least);
    near_the_edge |= logits[id] < sorted[kept * 9 / 10];
  }
  EXPECT_TRUE(near_the_edge);
}

TEST(Sampling, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  Sampler sampler({.repetition_penalty = 2});
  std::vector<float> logits = {4, 3, -1, -1.5f};
  EXPECT_EQ(sampler.pick(logits, std::vector<int64_t>{0, 2, 0}), 1);
  EXPECT_EQ(logits, (std::vector<float>{2, 3, -2, -1.5f}));
}

TEST(Sampling, IsAPureFunctionOfSeedAndPosition) {
  const std::vector<float> logits(100, 0.0f);
  EXPECT_EQ(pick_token(logits, {.temperature = 1, .seed = 3}, 5), pick_token(logits, {.temperature = 1, .seed = 3}, 5));
  int different = 0;
  for (int i = 0; i < 50; ++i)
    different += pick_token(logits, {.temperature = 1, .seed = 3}, i) != pick_token(logits, {.temperature = 1, .seed = 4}, i);
  EXPECT_GT(different, 40);
}

}  // namespace
}  // namespace lockstep::infer
