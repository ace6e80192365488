#include "lockstep/train/step_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/train/test_run_output.h"

namespace lockstep::train {
namespace {

using testing::due_steps;
using testing::TestOutput;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StepLog, HasALineForTheFirstStepEverySoManyAndTheLast) {
  TestOutput output("log-due");
  StepLog log({.every = 10, .total = 25}, *output);
  log.begin(0, 1);
  EXPECT_THAT(due_steps(log, 25), ElementsAre(1, 10, 20, 25));
  log.begin(13, 1);
  EXPECT_THAT(due_steps(log, 25), ElementsAre(10, 14, 20, 25));
}

TEST(StepLog, TellsTheSpeedOfAllStepsSinceTheLastLine) {
  TestOutput output("log-speed");
  int asked = 0;
  std::vector<int64_t> first;
  StepLog log({.every = 3,
               .total = 6,
               .worst_memory_gib = [&] { return static_cast<double>(++asked); },
               .behind_first = [&](int64_t step) { first.push_back(step); }},
              *output);
  log.begin(0, 4000);
  RunPosition at;
  for (int64_t step = 1; step <= 6; ++step) {
    at = {.step = step, .consumed_tokens = 100 * step};
    log.known({.step = step,
               .lr = 0.5,
               .seconds = static_cast<double>(step),
               .data_seconds = 0.25,
               .model_flops = 120 * 5,
               .result = {.loss = 7.0 - static_cast<double>(step), .tokens = 120, .exposed_comm_seconds = 0.5}},
              at);
  }
  const std::vector<Json> rows = output.rows();
  ASSERT_EQ(rows.size(), 3u);
  const auto expect_row = [&](const Json& row, int64_t step, double steps, double seconds) {
    EXPECT_EQ(row["step"], step);
    EXPECT_EQ(row["tokens"], 100 * step);
    EXPECT_EQ(row["train/loss"], 7.0 - static_cast<double>(step));
    EXPECT_EQ(row["perf/tokens_per_s"], 120 * steps / seconds);
    EXPECT_EQ(row["perf/mfu"], 120 * steps / seconds * 5 / 4000);
    EXPECT_EQ(row["perf/step_ms"], seconds / steps * 1000);
    EXPECT_EQ(row["data/wait"], 0.25 * steps / seconds);
    EXPECT_EQ(row["perf/exposed_comm"], 0.5 / static_cast<double>(step));
  };
  expect_row(rows[0], 1, 1, 1);
  expect_row(rows[1], 3, 2, 2 + 3);
  expect_row(rows[2], 6, 3, 4 + 5 + 6);
  EXPECT_EQ(asked, 3);  // it is collective: only where there is a line
  EXPECT_THAT(first, ElementsAre(1));
  EXPECT_EQ(log.last_loss(), 1);
}

// The whole vector once a line, so that a page can draw it; of a line the step it stands for.
TEST(StepLog, TellsTheLoadOfExperts) {
  TestOutput output("log-experts");
  StepLog log({.every = 2,
               .total = 2,
               .expert_loads =
                   [](const engine::StepResult& result) {
                     return std::vector<engine::ExpertLoad>{
                         {.layer = 2, .name = "blocks.1", .routed = std::span(result.loads).first(4), .dropped = result.loads[4]}};
                   },
               .worst_memory_gib = [] { return 0; },
               .behind_first = [](int64_t) {}},
              *output);
  log.begin(0, 1);
  for (const int64_t step : {1, 2})
    log.known({.step = step,
               .seconds = 1,
               .result = {.tokens = 8, .loads = {2.0 + static_cast<double>(step), 0, 5, 1, 3, 0, 0}, .aux_loss = 1.25, .z_loss = 0.5}},
              {.step = step});
  const std::vector<Json> rows = output.rows();
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0]["train/aux_loss"], 1.25);
  EXPECT_EQ(rows[0]["train/z_loss"], 0.5);
  EXPECT_EQ(rows[0]["experts/blocks.1/routed"], 9);
  EXPECT_EQ(rows[0]["experts/blocks.1/dropped"], 3);
  EXPECT_EQ(rows[0]["experts/blocks.1/max_over_mean"], 5 * 4 / 9.0);
  EXPECT_EQ(rows[1]["event"], "expert_load");
  EXPECT_EQ(rows[1]["blocks.1"], "3 0 5 1");
  EXPECT_EQ(rows[1]["blocks.1/dropped"], 3);
  EXPECT_EQ(rows[2]["step"], 2);
  EXPECT_EQ(rows[3]["blocks.1"], "4 0 5 1");
}

TEST(StepLog, SumsUpWhatAllStepsHaveWaitedFor) {
  TestOutput output("log-sum");
  StepLog log({.every = 100, .total = 100, .worst_memory_gib = [] { return 0; }, .behind_first = [](int64_t) {}}, *output);
  log.begin(0, 1);
  log.sum_up();
  EXPECT_THAT(output.log(), ::testing::Not(HasSubstr("waited")));
  for (const int64_t step : {2, 3})
    log.known({.step = step, .seconds = 2, .result = {.tokens = 1, .exposed_by = {{"tp all_reduce", 1}}}}, {.step = step});
  log.sum_up();
  EXPECT_THAT(output.log(), HasSubstr("waited for communication 50.0 % of 4.0 s: tp all_reduce 50.0 %"));
}

}  // namespace
}  // namespace lockstep::train
