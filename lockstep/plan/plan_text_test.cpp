#include "lockstep/plan/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/plan/what_if.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr double kGiB = 1024.0 * 1024 * 1024;

Cluster cluster() {
  return {.device = {.name = "H100", .memory = 80 * kGiB, .flops_bf16 = 989e12}, .nodes = 2, .devices_per_node = 8, .price = 2.5};
}

StageEstimate stage(int number, double activations) {
  return {.stage = number, .layers = 10, .parameters = 10 * kGiB, .gradients = 8 * kGiB, .optimizer = 6 * kGiB, .activations = activations * kGiB,
          .buffers = 1 * kGiB, .peak = (25 + activations) * kGiB, .reserved = (30 + activations) * kGiB};
}

// 2 s: half of it products, a quarter a bubble.
StepEstimate estimate() {
  return {.seconds = 2,
          .low = 1.8,
          .high = 2.2,
          .breakdown = {.products = 1, .attention = 0.3, .tensor = 0.2, .bubble = 0.5},
          .stages = {stage(0, 40), stage(1, 20), stage(2, 30), stage(3, 10)},
          .worst_stage = 0,
          .tokens = 1e6,
          .mfu_causal = 0.4,
          .mfu_noncausal = 0.44,
          .widest = "tensor parallel overlap"};
}

std::vector<std::string> lines(const std::string& text) { return split(text, '\n'); }

TEST(PlanText, TermsAreAllOfABreakdown) {
  Breakdown breakdown;
  double next = 1, sum = 0;
  for (const Term& term : terms()) {
    breakdown.*term.seconds = next;
    sum += next;
    next *= 2;
  }
  EXPECT_EQ(breakdown.sum(), sum);
  EXPECT_EQ(sum, 4095);  // 12 members, each once
}

TEST(PlanText, FirstLastAndTheWorstBetweenAreShown) {
  const std::string text = fit_text(estimate(), cluster());
  const std::vector<std::string> rows = lines(text);
  ASSERT_EQ(rows.size(), 6u);  // heads, three stages, the line below, what is behind the last end of line
  EXPECT_THAT(rows[1], StartsWith("0 first"));
  EXPECT_THAT(rows[2], StartsWith("2 between"));
  EXPECT_THAT(rows[3], StartsWith("3 last"));
  EXPECT_THAT(rows[1], HasSubstr("87.5 %"));  // 70 of 80
  EXPECT_EQ(std::ranges::count(rows[1], '#'), 18);  // 87.5 % of 20 columns
  EXPECT_EQ(rows[4], "fits: stage 0 needs 70.0 GiB of the 80.0 GiB of H100, 10.0 GiB are left");
  EXPECT_EQ(lines(fit_text(estimate(), cluster(), true)).size(), 7u);
}

TEST(PlanText, WhatDoesNotFitIsSaidWithItsLargestPart) {
  StepEstimate large = estimate();
  large.stages[0] = stage(0, 60);
  large.fits = false;
  const std::string text = fit_text(large, cluster());
  EXPECT_THAT(text, HasSubstr("\ndoes not fit: stage 0 needs 90.0 GiB of the 80.0 GiB of H100, 10.0 GiB too little; "));
  EXPECT_THAT(text, HasSubstr("most is activations, 60.0 GiB: recomputation"));
}

TEST(PlanText, MoneyAndTokensOfARun) {
  // 1e9 tokens: 1000 steps of 2 s on 16 devices at $2.5; with 80 % of the time useful.
  const MoneyOptions run{.tokens = 1e9, .useful = 0.8, .devices = 16};
  const std::string text = step_text(estimate(), cluster(), run);
  EXPECT_THAT(text, HasSubstr("step    2.000 s; in 9 of 10 cases 1.800 s to 2.200 s; least sure: tensor parallel overlap\n"));
  EXPECT_THAT(text, HasSubstr("500k a second, 31.2k a second and device"));
  EXPECT_THAT(text, HasSubstr("40.0 % of 989 TFLOP/s bf16, attention counted causal; 44.0 % where all of it counts"));
  EXPECT_THAT(text, HasSubstr("$0.02 a step, $22.22 for 1e9 tokens, at $2.50 for a device and hour"));
  EXPECT_THAT(text, HasSubstr("41m40s with failures and saving (80.0 % useful), $27.78"));
  Cluster free = cluster();
  free.price = 0;
  EXPECT_THAT(step_text(estimate(), free, {.devices = 16}), Not(HasSubstr("$")));
}

TEST(PlanText, AmountsOfMoney) {
  EXPECT_EQ(money_text(5.125), "$5.12");
  EXPECT_EQ(money_text(1234), "$1.23k");
  EXPECT_EQ(money_text(123456), "$123.5k");
  EXPECT_EQ(money_text(1.4e6), "$1.40M");
}

TEST(PlanText, NumbersOfOneColumnHaveTheSameDigits) {
  EXPECT_EQ(tenths_text(0.04), "4.0 %");
  EXPECT_EQ(tenths_text(1), "100.0 %");
  EXPECT_EQ(tenths_text(0), "0.0 %");
  EXPECT_EQ(tenths_text(0.0001), "< 0.1 %");
  EXPECT_EQ(change_text(-0.0604), "-6.0 %");
  EXPECT_EQ(change_text(-0.0001), "0.0 %");
  EXPECT_EQ(seconds_text(14.04), "14.04 s");
  EXPECT_EQ(seconds_text(9.5, 14.04), "9.50 s");
  EXPECT_EQ(seconds_text(0.142, 3.594), "0.142 s");
  EXPECT_EQ(seconds_text(145.86), "145.9 s");
  EXPECT_EQ(seconds_text(12345.6), "12346 s");
  EXPECT_EQ(seconds_text(0.0123), "12.30 ms");
  EXPECT_EQ(seconds_text(0), "0.000 s");
  EXPECT_EQ(band_text(estimate()), "1.800 s to 2.200 s");
}

TEST(PlanText, BarsAndTheLargestLoss) {
  const std::string text = limits_text(estimate());
  EXPECT_THAT(text, HasSubstr("matrix products        1.000 s  50.0 %  ####################\n"));
  EXPECT_THAT(text, Not(HasSubstr("optimizer")));  // takes no time
  EXPECT_THAT(text, HasSubstr("computing 65.0 %, waiting for communication 10.0 %, bubble and host 25.0 %\n"));
  EXPECT_THAT(text, HasSubstr("largest beside products and attention: pipeline bubble, 25.0 %; more microbatches"));
}

TEST(PlanText, StepsSideBySideInWhatDiffers) {
  const StepEstimate now = estimate();
  StepEstimate other = now;
  other.seconds = 2.4;
  other.breakdown.tensor = 0.6;
  const std::string text = compare_text({{"this", &now}, {"tp=16", &other}});
  EXPECT_EQ(lines(text).size(), 4u);  // heads, what differs, the step
  EXPECT_THAT(text, HasSubstr("tensor parallel waits  0.200 s  0.600 s   +20.0 %\n"));  // of the first step
  EXPECT_THAT(text, HasSubstr("2.400 s   +20.0 %\n"));
  EXPECT_EQ(cause_of(now, other), "tensor parallel waits: 0.400 s more");
  EXPECT_EQ(cause_of(other, now), "tensor parallel waits: 0.400 s less");
  EXPECT_EQ(cause_of(now, now), "");
}

Found found(const Candidate& candidate, const std::string& why) { return {.candidate = candidate, .estimate = estimate(), .why = why}; }

TEST(PlanText, LayoutsWithoutColumnsThatSayNothing) {
  const std::string text = layouts_text({found({.tp = 2, .dp = 8}, "fastest"), found({.tp = 4, .dp = 4}, "waits more")}, cluster(), true);
  const std::vector<std::string> rows = lines(text);
  EXPECT_THAT(rows[0], Not(HasSubstr("cp")));
  EXPECT_THAT(rows[0], Not(HasSubstr("schedule")));
  EXPECT_THAT(rows[0], HasSubstr("tp  pp  dp  zero  micro-batch  recompute  devices"));
  EXPECT_THAT(rows[1], HasSubstr("70.0 GiB"));
  EXPECT_THAT(rows[1], HasSubstr("$0.02"));  // 16 devices x 2 s x $2.5/h
  EXPECT_EQ(rows[3], "1  fastest");
  EXPECT_EQ(rows[4], "2  waits more");
  EXPECT_THAT(layouts_text({found({.tp = 2, .cp = 2, .dp = 4}, "")}, cluster(), false), HasSubstr("cp"));
}

TEST(PlanText, RejectedByReasonTheMostFirst) {
  SearchResult result{.rejected = {{Reject::kHeads, 12}, {Reject::kMemory, 34567}},
                      .misses = {{.candidate = {.tp = 4, .dp = 2}, .reason = Reject::kMemory, .text = "needs 84.1 GB of 80.0"}},
                      .candidates = 40000};
  const std::vector<std::string> rows = lines(rejected_text(result));
  EXPECT_EQ(rows[0], "40,000  looked at");
  EXPECT_EQ(rows[1], cat("34,567  ", reject_text(Reject::kMemory)));
  EXPECT_EQ(rows[2], cat("    12  ", reject_text(Reject::kHeads)));
  EXPECT_EQ(rows[3], "nearest misses");
  EXPECT_EQ(rows[4], cat("  ", describe(result.misses[0].candidate), ": needs 84.1 GB of 80.0"));
}

// The largest first; one that changes the order is told however small it is.
TEST(PlanText, ConstantsByWhatTheyChange) {
  SearchResult result{.sensitivity = {{.constant = "launch", .minus = -0.0001, .plus = 0.0001},
                                      {.constant = "straggle", .minus = 0, .plus = 0.0001, .order_changes = true},
                                      {.constant = "product_cap", .minus = 0.071, .plus = -0.058}}};
  const std::vector<std::string> rows = lines(sensitivity_text(result));
  EXPECT_THAT(rows[1], StartsWith("product_cap     +7.1 %     -5.8 %  stays"));
  EXPECT_THAT(rows[2], StartsWith("straggle         0.0 %      0.0 %  is another"));
  EXPECT_EQ(rows[3], "1 further constant changes it less");
}

TEST(PlanText, WhatIfsWithTheirCause) {
  const std::string text = what_ifs_text({{.what = "NICs half as fast", .seconds = 2.5, .note = "data parallel waits: 500 ms more"},
                                          {.what = "A100", .seconds = 5, .fits = false}}, estimate());
  EXPECT_THAT(text, HasSubstr("NICs half as fast  2.500 s   +25.0 %  data parallel waits: 500 ms more\n"));
  EXPECT_THAT(text, HasSubstr("+150.0 %  does not fit\n"));
}

}  // namespace
}  // namespace lockstep::plan
