#include "lockstep/train/predicted_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/train/step_log.h"
#include "lockstep/train/test_run_output.h"

namespace lockstep::train {
namespace {

using testing::TestOutput;
using ::testing::HasSubstr;
using ::testing::Not;

const PredictedStep kPredicted{.seconds = 0.63, .low = 0.6, .high = 0.7, .machine = "machine.toml"};

TEST(PredictedStep, IsToldWithItsBand) { EXPECT_EQ(predicted_text(kPredicted), "630 ms a step (600 ms to 700 ms) by machine.toml"); }

TEST(PredictedStep, IsToldBesideWhatWasMeasured) {
  EXPECT_EQ(beside_measured(kPredicted, 0.7, 5), "step: measured 700 ms (median of 5), predicted 630 ms: 10.0 % less, within the band of 600 ms to 700 ms");
  EXPECT_EQ(beside_measured(kPredicted, 0.5, 1), "step: measured 500 ms (median of 1), predicted 630 ms: 26.0 % more, outside the band of 600 ms to 700 ms");
}

StepRecord step_of(int64_t step, double seconds) { return {.step = step, .seconds = seconds, .result = {.tokens = 1}}; }

TEST(PredictedStep, StandsBesideTheMedianOfTheStepsBehindTheFirst) {
  TestOutput output("predicted");
  StepLog log({.every = 100, .total = 100, .worst_memory_gib = [] { return 0; }, .behind_first = [](int64_t) {}, .predicted = kPredicted}, *output);
  log.begin(20, 1);  // goes on behind step 20
  for (const auto& [step, seconds] : {std::pair{21, 9.0}, {22, 0.8}, {23, 0.6}, {24, 0.7}}) log.known(step_of(step, seconds), {.step = step});
  log.sum_up();
  EXPECT_THAT(output.log(), HasSubstr("step: measured 700 ms (median of 3), predicted 630 ms: 10.0 % less"));
  const Json row = output.rows().back();
  EXPECT_EQ(row["event"], "predicted_step");
  EXPECT_EQ(row["machine"], "machine.toml");
  EXPECT_EQ(row["step"], 24);
  EXPECT_EQ(row["steps"], 3);
  EXPECT_DOUBLE_EQ(row["measured_ms"], 700);
  EXPECT_DOUBLE_EQ(row["predicted_ms"], 630);
  EXPECT_DOUBLE_EQ(row["low_ms"], 600);
  EXPECT_DOUBLE_EQ(row["high_ms"], 700);
}

TEST(PredictedStep, IsNotToldWhereNobodyAskedOrNothingWasMeasured) {
  for (const bool asked : {true, false}) {
    TestOutput output("predicted-not");
    StepLogOptions options{.every = 100, .total = 100, .worst_memory_gib = [] { return 0; }, .behind_first = [](int64_t) {}};
    if (asked) options.predicted = kPredicted;
    StepLog log(options, *output);
    log.begin(0, 1);
    log.known(step_of(1, 9), {.step = 1});
    if (!asked) log.known(step_of(2, 9), {.step = 2});
    log.sum_up();
    EXPECT_THAT(output.log(), Not(HasSubstr("predicted")));
  }
}

}  // namespace
}  // namespace lockstep::train
