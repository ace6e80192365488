// Some published runs by the whole planner. What the errors of all are says lockstep plan --evidence.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "lockstep/plan/evidence/replay.h"
#include "lockstep/plan/time/step_estimate.h"

namespace lockstep::plan {
namespace {

const std::string kShipped = LOCKSTEP_SOURCE_DIR "/lockstep/plan/evidence/published_runs.json";

// Of each source with complete rows the first few, without what takes seconds to lay out.
Evidence evidence_of_some() {
  constexpr size_t kOfSource = 10;
  const PublishedRuns runs = read_published_runs(kShipped);
  const std::vector<MeasuredRun> measured = read_measured_runs(kShipped);
  std::vector<Prediction> predictions;
  std::vector<MeasuredRun> compared;
  std::map<std::string, size_t> taken;
  for (size_t i = 0; i < runs.runs.size(); ++i) {
    const PublishedRun& run = runs.runs[i];
    if (run.tier != "A" || taken[run.source] >= kOfSource) continue;
    ++taken[run.source];
    predictions.push_back(predict_run(run, runs.sources.at(run.source), estimate_step));
    compared.push_back(measured[i]);
  }
  return compare(predictions, compared);
}

TEST(EvidenceRows, ErrorsOfRunsThatSayEverything) {
  const Evidence evidence = evidence_of_some();
  EXPECT_TRUE(evidence.refused.empty());
  EXPECT_GE(evidence.rows.size(), 50u);
  for (const Compared& row : evidence.rows) {
    const Prediction& prediction = row.prediction;
    EXPECT_LT(std::abs(row.error()), 0.35) << prediction.id << " " << prediction.seconds << " of " << row.measured;
    EXPECT_NEAR(prediction.breakdown.sum() / prediction.seconds, 1, 1e-6) << prediction.id;
    EXPECT_GT(prediction.memory.allocated, 0) << prediction.id;
  }
  EXPECT_LT(evidence.all.step.median, 0.05);
  EXPECT_LT(evidence.all.step.p90, 0.20);
  EXPECT_GE(evidence.all.order.tau, 0.9);
  EXPECT_GE(evidence.all.step.in_band, 0.85);
}

// No number was fitted to these.
TEST(EvidenceRows, ErrorsOfSourcesThatWereFoundLater) {
  const std::string later = LOCKSTEP_SOURCE_DIR "/lockstep/plan/evidence/later_runs.json";
  const PublishedRuns runs = read_published_runs(later);
  std::vector<Prediction> predictions;
  for (const PublishedRun& run : runs.runs) predictions.push_back(predict_run(run, runs.sources.at(run.source), estimate_step));
  const Evidence evidence = compare(predictions, read_measured_runs(later));
  EXPECT_TRUE(evidence.refused.empty());
  EXPECT_EQ(evidence.rows.size(), 86u);
  EXPECT_LT(evidence.all.step.median, 0.05);
  EXPECT_LT(evidence.all.step.p90, 0.12);
  EXPECT_GE(evidence.all.step.in_band, 0.9);
  EXPECT_GE(evidence.all.order.tau, 0.9);
}

}  // namespace
}  // namespace lockstep::plan
