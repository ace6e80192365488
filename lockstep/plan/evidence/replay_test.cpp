#include "lockstep/plan/evidence/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/evidence/evidence_svg.h"
#include "lockstep/plan/evidence/evidence_text.h"
#include "lockstep/plan/evidence/runs_json.h"
#include "lockstep/plan/evidence/test_runs.h"

namespace lockstep::plan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kGb = 1e9;

// A second for each microbatch and each sequence of it, a tenth more for each step of recomputing.
StepEstimate foretold(const program::Layout& layout, const Cluster&, const Stack&, const EstimateOptions&) {
  StepEstimate step;
  step.breakdown.products = static_cast<double>(layout.num_microbatches() * (layout.micro_batch + 1));
  step.breakdown.recompute = 0.1 * static_cast<int>(layout.recompute_of(1)) * step.breakdown.products;
  step.seconds = step.breakdown.sum();
  step.low = 0.9 * step.seconds;
  step.high = 1.1 * step.seconds;
  step.stages.push_back({.peak = 40 * kGb});
  return step;
}

Prediction predicted(const Json& row) { return predict_run(run_of(row), {}, foretold); }

TEST(PredictRun, OpenFieldsTakeTheFastestThatFits) {
  const PublishedRun run = run_of(row_of_8b());
  const RunFrame frame = frame_of(run, {});
  // By hand: of all choices that fit, the least of microbatches x (sequences + 1) x (1 + a tenth for each step of recomputing).
  double least = 1e9;
  for (const RunChoice& choice : choices_of(run, frame)) {
    if (!fits(run, frame, memory_parts(run, frame, choice))) continue;
    least = std::min(least, 16.0 / choice.micro_batch * (choice.micro_batch + 1) * (1 + 0.1 * static_cast<int>(choice.recompute)));
  }
  const Prediction prediction = predicted(row_of_8b());
  ASSERT_TRUE(prediction.predicted()) << prediction.reason;
  EXPECT_NEAR(prediction.seconds, least, 1e-9);
  EXPECT_TRUE(prediction.fits);
  EXPECT_LE(prediction.memory.device, frame.cluster.device.memory);
  EXPECT_EQ(prediction.assumed.size(), 4u);
  EXPECT_EQ(prediction.tokens, 128 * 8192);
}

TEST(PredictRun, WhatTheRowSaysStaysEvenIfItDoesNotFit) {
  Json row = row_of_8b();
  row["layout"]["micro_batch"] = 16;
  row["layout"]["recompute"] = "none";  // 8192 x 16 tokens of 32 layers: some 400 GB
  const Prediction prediction = predicted(row);
  EXPECT_DOUBLE_EQ(prediction.seconds, 17);
  EXPECT_FALSE(prediction.fits);
  EXPECT_THAT(prediction.notes, Contains(HasSubstr("it ran, but needs")));
}

TEST(PredictRun, MemoryByKind) {
  Json row = row_of_8b();
  row["layout"]["micro_batch"] = 1;
  row["layout"]["recompute"] = "none";
  const Prediction prediction = predicted(row);
  EXPECT_DOUBLE_EQ(prediction.own_memory, 40 * kGb);
  EXPECT_GT(prediction.memory.reserved, prediction.memory.allocated);
  EXPECT_GT(prediction.memory.device, prediction.memory.reserved);
}

TEST(PredictRun, APartMicrobatchLiesOnTheLine) {
  Json row = row_of_8b();
  row["layout"]["micro_batch"] = 3;
  row["layout"]["global_batch"] = 64;  // 2 2/3 microbatches of 4 s
  row["layout"]["recompute"] = "none";
  EXPECT_NEAR(predicted(row).seconds, 8.0 / 3 * 4, 1e-9);
}

TEST(PredictRun, MfuCountsTheModelOfTheRow) {
  Json row = row_of_8b();
  row["layout"]["micro_batch"] = 1;
  row["layout"]["recompute"] = "none";
  const Prediction prediction = predicted(row);  // 16 microbatches of 2 s
  const RunFlops flops = flops_of_token(run_of(row).model);
  EXPECT_DOUBLE_EQ(prediction.mfu, flops.noncausal * 128 * 8192 / (32 * 8 * 989e12));
  EXPECT_LT(prediction.mfu_causal, prediction.mfu);
}

TEST(PredictRun, AReasonWhereARowCannotBeLaidOut) {
  Json row = row_of_8b();
  row["model"]["hidden"] = nullptr;
  const Prediction prediction = predicted(row);
  EXPECT_FALSE(prediction.predicted());
  EXPECT_THAT(prediction.reason, HasSubstr("not printed: hidden"));
}

TEST(PredictRun, ABrokenInvariantIsTheReasonOfItsRow) {
  const auto broken = [](const program::Layout&, const Cluster&, const Stack&, const EstimateOptions&) -> StepEstimate {
    throw InternalError("a check failed");
  };
  EXPECT_EQ(predict_run(run_of(row_of_8b()), {}, broken).reason, "internal error: a check failed");
}

TEST(RunsJson, ALineForEachRowThatParses) {
  Json broken = row_of_8b();
  broken["id"] = "broken";
  broken["model"]["layers"] = nullptr;
  const std::string text = runs_json(predict_runs(runs_of({row_of_145b(), broken}), foretold));
  std::vector<Json> lines;
  for (const std::string& line : split(text, '\n'))
    if (!line.empty()) lines.push_back(parse_json(line, "line"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["id"], "big");
  EXPECT_DOUBLE_EQ(lines[0]["step_time_s"].get<double>(), 48 * 3 * 1.2);
  EXPECT_EQ(lines[0]["band"].size(), 2u);
  EXPECT_LT(lines[0]["band"][0].get<double>(), lines[0]["step_time_s"].get<double>());
  EXPECT_DOUBLE_EQ(lines[0]["breakdown"]["products"].get<double>(), 48 * 3);
  EXPECT_GT(lines[0]["peak_memory_bytes"].get<double>(), 0);
  EXPECT_GT(lines[0]["mfu"].get<double>(), 0);
  EXPECT_TRUE(lines[1]["step_time_s"].is_null());
  EXPECT_THAT(lines[1]["reason"].get<std::string>(), HasSubstr("layers"));
}

TEST(RunsJson, WhatWasMeasuredChangesNothing) {
  const std::string before = runs_json(predict_runs(runs_of({row_of_145b(), row_of_8b()}), foretold));
  Json big = row_of_145b(), small = row_of_8b();
  big["measured"] = {{"step_time_s", 1e9}, {"memory_gib", 1}, {"mfu_pct", "none"}};
  big["derived"] = {{"step_time_s", -3}, {"model_tflops_causal", 1}};
  small.erase("measured");
  small.erase("derived");
  EXPECT_EQ(runs_json(predict_runs(runs_of({big, small}), foretold)), before);
}

// Of two devices and two tokens, so that a second of the step is one of a device per token.
Compared compared(const std::string& id, double measured, double seconds, const std::string& model = "m") {
  Prediction prediction{.id = id, .source = "s", .tier = "A", .model = model, .device = "H100-SXM5-80GB", .gpus = 2};
  prediction.seconds = seconds;
  prediction.low = 0.9 * seconds;
  prediction.high = 1.1 * seconds;
  prediction.tokens = 2;
  return {.prediction = prediction, .measured = measured};
}
std::vector<const Compared*> all_of(const std::vector<Compared>& rows) {
  std::vector<const Compared*> pointers;
  for (const Compared& row : rows) pointers.push_back(&row);
  return pointers;
}

TEST(Quantile, BetweenNeighbours) {
  EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({10, 20}, 0.9), 19);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.9), 7);
  EXPECT_THROW(quantile({}, 0.5), InternalError);
}

TEST(ErrorStats, MedianP90BiasAndBand) {
  // Errors -20 %, -4 %, 0, +2 %, +10 %.
  const std::vector<Compared> rows = {compared("a", 10, 8), compared("b", 10, 9.6), compared("c", 10, 10),
                                      compared("d", 10, 10.2), compared("e", 10, 11)};
  const ErrorStats stats = error_stats(all_of(rows));
  EXPECT_EQ(stats.rows, 5);
  EXPECT_NEAR(stats.median, 0.04, 1e-12);
  EXPECT_NEAR(stats.p90, 0.10 + 0.6 * 0.10, 1e-12);  // 0.6 of the way from the fourth to the fifth
  EXPECT_NEAR(stats.bias, 0, 1e-12);
  EXPECT_NEAR(stats.in_band, 0.8, 1e-12);  // 10 is not in 7.2 to 8.8
  EXPECT_EQ(error_stats({}).rows, 0);
}

TEST(OrderStats, PairsThatDifferByMoreThanFivePercent) {
  // Measured 1, 1.04 are one time; 2 and 3 lie apart. Predicted: 3 falls below 2.
  const std::vector<Compared> rows = {compared("a", 1, 1), compared("b", 1.04, 0.9), compared("c", 2, 2), compared("d", 3, 1.9)};
  const OrderStats order = order_stats(all_of(rows), false);
  EXPECT_EQ(order.pairs, 5);  // of 6 all but a, b
  EXPECT_DOUBLE_EQ(order.tau, (4.0 - 1.0) / 5);
}

TEST(OrderStats, OfOneModelAndOneSource) {
  std::vector<Compared> rows = {compared("a", 1, 1), compared("b", 2, 2), compared("c", 3, 3, "other")};
  EXPECT_EQ(order_stats(all_of(rows), false).pairs, 3);
  EXPECT_EQ(order_stats(all_of(rows), true).pairs, 1);
  rows[1].prediction.source = "t";
  EXPECT_EQ(order_stats(all_of(rows), false).pairs, 1);
  EXPECT_EQ(order_stats({}, false).pairs, 0);
}

TEST(OrderStats, RunsOfOtherBatchesCompareByTokens) {
  std::vector<Compared> rows = {compared("a", 1, 1), compared("b", 1.5, 1.5)};
  rows[1].prediction.tokens = 4;  // less for each token, as predicted
  EXPECT_DOUBLE_EQ(order_stats(all_of(rows), false).tau, 1);
  rows[1].prediction.seconds = 2.5;
  EXPECT_DOUBLE_EQ(order_stats(all_of(rows), false).tau, -1);
}

TEST(MemoryStats, ByTheKindThatIsPrinted) {
  std::vector<Compared> rows = {compared("a", 1, 1), compared("b", 1, 1), compared("c", 1, 1)};
  for (Compared& row : rows) row.prediction.memory = {.allocated = 50 * kGb, .reserved = 60 * kGb, .device = 70 * kGb};
  rows[0].memory = {.kind = MemoryKind::kReserved, .bytes = 60 * kGb};
  rows[1].memory = {.kind = MemoryKind::kReserved, .bytes = 80 * kGb};
  const std::vector<MemoryStats> stats = memory_stats(all_of(rows));
  ASSERT_EQ(stats.size(), 1u);
  EXPECT_EQ(stats[0].kind, MemoryKind::kReserved);
  EXPECT_EQ(stats[0].rows, 2);
  EXPECT_NEAR(stats[0].median, 0.125, 1e-12);
  EXPECT_NEAR(stats[0].worst, 0.25, 1e-12);
}

Evidence evidence_of_three() {
  Json weak = row_of_8b(), broken = row_of_8b();
  weak["id"] = "weak";
  weak["tier"] = "C";
  broken["id"] = "broken";
  broken["gpu"]["name"] = "TPU-v5p";
  const std::string file = file_of({row_of_145b(), row_of_8b(), weak, broken});
  return compare(predict_runs(parse_published_runs(file, "runs.json"), foretold), parse_measured_runs(file, "runs.json"));
}

TEST(Compare, GroupsBySourceTierAndDevice) {
  const Evidence evidence = evidence_of_three();
  EXPECT_EQ(evidence.rows.size(), 3u);
  EXPECT_EQ(evidence.refused.size(), 1u);
  EXPECT_EQ(evidence.all.step.rows, 2);  // tier C is looked at only
  ASSERT_EQ(evidence.sources.size(), 2u);
  EXPECT_EQ(evidence.sources[0].name, "notes");
  EXPECT_EQ(evidence.sources[0].step.rows, 1);
  EXPECT_EQ(evidence.tiers.size(), 3u);
  EXPECT_EQ(evidence.devices.size(), 2u);
  EXPECT_EQ(evidence.sources[0].memory.size(), 1u);
}

TEST(Compare, ListsOfOtherLengthsAreNoComparison) {
  EXPECT_THROW(compare({}, {MeasuredRun{.id = "a"}}), InternalError);
  EXPECT_THROW(compare({Prediction{.id = "b"}}, {MeasuredRun{.id = "a"}}), InternalError);
}

TEST(EvidenceText, TablesForTerminalAndDocumentation) {
  const Evidence evidence = evidence_of_three();
  const std::string text = evidence_text(evidence), markdown = evidence_text(evidence, {.markdown = true});
  for (const std::string& page : {text, markdown}) {
    EXPECT_THAT(page, HasSubstr("3 published runs predicted and compared"));
    EXPECT_THAT(page, HasSubstr("no device is called 'TPU-v5p'"));
    EXPECT_THAT(page, HasSubstr("reserved"));
    EXPECT_THAT(page, HasSubstr("24.82 s"));
  }
  EXPECT_THAT(markdown, HasSubstr("| source | runs | median |"));
  EXPECT_THAT(markdown, HasSubstr("### By device"));
  EXPECT_THAT(text, Not(HasSubstr("|")));
  EXPECT_THAT(evidence_text(Evidence{}), HasSubstr("0 published runs"));
}

TEST(EvidenceSvg, APointForEachRunThatWasCompared) {
  const std::string svg = evidence_svg(evidence_of_three());
  EXPECT_TRUE(svg.starts_with("<svg xmlns"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("big: gpt-145.6B on 1536 x A100-SXM4-80GB, measured 24.820 s, predicted 172.800 s, +596.2 %"));
  EXPECT_THAT(svg, HasSubstr("class=\"p c0 o\""));  // tier C is hollow
  EXPECT_THAT(svg, HasSubstr("12 % off"));
  EXPECT_THAT(svg, Not(HasSubstr("http://www.w3.org/1999/xlink")));
  EXPECT_TRUE(evidence_svg(Evidence{}).ends_with("</svg>\n"));
}

}  // namespace
}  // namespace lockstep::plan
