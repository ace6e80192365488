#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lockstep/infer/sampling.h"

namespace lockstep::infer {
namespace {

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
