#include "lockstep/train/skipped_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/train/test_run_output.h"

namespace lockstep::train {
namespace {

TEST(SkippedSteps, EndTheRunWhereTheyFollowOneAnother) {
  testing::TestOutput output("skipped");
  SkippedSteps steps(*output);
  EXPECT_FALSE(steps.due(1));
  const StepRecord record{.step = 4, .result = {.skipped = "rank 1: norm.weight"}};
  for (int64_t i = 1; i < SkippedSteps::kMost; ++i) steps.skipped(record);
  steps.known({.step = 4}, {.step = 4});
  for (int64_t i = 1; i < SkippedSteps::kMost; ++i) steps.skipped(record);
  EXPECT_EQ(output.rows().size(), static_cast<size_t>(2 * (SkippedSteps::kMost - 1)));
  EXPECT_EQ(output.rows()[0]["event"], "nonfinite");
  EXPECT_EQ(output.rows()[0]["names"], "rank 1: norm.weight");
  try {
    steps.skipped(record);
    ADD_FAILURE() << "no error";
  } catch (const DivergedError& error) {
    EXPECT_EQ(error.message().what,
              "step 4: a gradient is not finite in 10 batches one after the other (now rank 1: norm.weight)");
  }
}

}  // namespace
}  // namespace lockstep::train
