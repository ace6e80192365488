#include "lockstep/train/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "lockstep/train/test_run_output.h"

namespace lockstep::train {
namespace {

using testing::due_steps;
using testing::TestOutput;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Evaluation, FollowsEverySoManyStepsAndTheLast) {
  TestOutput output("evaluation");
  int made = 0;
  const auto loss = [&] { return 0.5 * ++made; };
  EXPECT_THAT(due_steps(Evaluation(0, 7, loss, *output), 7), IsEmpty());
  Evaluation evaluation(3, 7, loss, *output);
  EXPECT_THAT(due_steps(evaluation, 7), ElementsAre(3, 6, 7));
  for (int64_t step = 1; step <= 7; ++step) evaluation.settled({.step = step});
  const std::vector<Json> rows = output.rows();
  ASSERT_EQ(rows.size(), 3u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["event"], "eval");
    EXPECT_EQ(rows[i]["step"], (std::array<int64_t, 3>{3, 6, 7}[i]));
    EXPECT_EQ(rows[i]["validation/loss"], 0.5 * static_cast<double>(i + 1));
  }
  EXPECT_THAT(output.log(), ::testing::HasSubstr("validation loss 1.5 at step 7"));
}

}  // namespace
}  // namespace lockstep::train
