// Every number of ranks that a refusal offers can hold the model.
#include "apps/lockstep/generate_heads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::apps {
namespace {

arch::ModelConfig model(int64_t heads, int64_t kv_heads) {
  arch::ModelConfig model = arch::resolve_model({.preset = "llama-test"});
  model.heads = heads;
  model.kv_heads = kv_heads;
  return model;
}

// The ways out; none where the ranks hold the model.
std::vector<config::Suggestion> ways_out(const arch::ModelConfig& model, int64_t ranks) {
  try {
    check_heads(model, ranks);
  } catch (const config::RefusedConfig& refused) {
    EXPECT_EQ(refused.message().code, "LS1007");
    EXPECT_FALSE(refused.problems().at(0).ways.empty()) << refused.what();
    return refused.problems().at(0).ways;
  }
  EXPECT_TRUE(ranks_can_hold(model, ranks));
  return {};
}

TEST(GenerateHeads, EveryWayOutHolds) {
  int taken = 0;
  for (const auto& [heads, kv_heads] : {std::pair{12, 4}, {12, 12}, {32, 8}, {25, 25}, {64, 1}, {7, 7}})
    for (int ranks = 1; ranks <= 70; ++ranks)
      for (const config::Suggestion& way : ways_out(model(heads, kv_heads), ranks)) {
        EXPECT_EQ(way.changes.at(0).key, config::kRanks);
        EXPECT_TRUE(ways_out(model(heads, kv_heads), std::stoll(way.changes[0].value.value())).empty());
        ++taken;
      }
  EXPECT_GT(taken, 300);
}

TEST(GenerateHeads, TheNearestAreOffered) {
  // 6 divides the 12 heads, and neither it nor the 4 key/value heads divides the other.
  EXPECT_EQ(text_of(ways_out(model(12, 4), 6)), "use -n 12 or 4");
  EXPECT_EQ(text_of(ways_out(model(12, 12), 5)), "use -n 4 or 6");
}

}  // namespace
}  // namespace lockstep::apps
