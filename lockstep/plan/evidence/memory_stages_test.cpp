#include "lockstep/plan/evidence/memory_stages.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/plan/evidence/test_runs.h"

namespace lockstep::plan {
namespace {

using config::ScheduleKind;
using Counts = std::vector<double>;

TEST(MemoryStages, OneForwardOneBackwardHoldsFewerOnLaterStages) {
  const auto of = [](int stage, double microbatches) {
    return microbatches_in_flight(ScheduleKind::kOneFOneB, stage, 4, 1, microbatches);
  };
  EXPECT_EQ(of(0, 8), Counts{4});
  EXPECT_EQ(of(3, 8), Counts{1});
  EXPECT_EQ(of(0, 2), Counts{2});
}

// The first stage of an interleaved pipeline holds p + (p-1)/v microbatches of its layers (Narayanan et al. 2021).
TEST(MemoryStages, InterleavedTakesChunksInTurns) {
  for (const int chunks : {2, 3, 5}) {
    const Counts counts = microbatches_in_flight(ScheduleKind::kOneFOneB, 0, 4, chunks, 64);
    EXPECT_DOUBLE_EQ(std::accumulate(counts.begin(), counts.end(), 0.0), 4.0 * chunks + 3) << chunks;
  }
  // 2 x 3 + 4 + 1 = 11 forwards: four of the first chunk, four of the second, three of the first again.
  EXPECT_EQ(microbatches_in_flight(ScheduleKind::kOneFOneB, 0, 4, 2, 64), (Counts{7, 4}));
  EXPECT_EQ(microbatches_in_flight(ScheduleKind::kOneFOneB, 3, 4, 2, 64), (Counts{4, 1}));
  EXPECT_EQ(microbatches_in_flight(ScheduleKind::kOneFOneB, 0, 4, 2, 4), (Counts{4, 4}));  // no more than there are
}

// Qi et al. 2023: as 1F1B's first stage on all of them, and twice that without a bubble.
TEST(MemoryStages, ZeroBubbleSchedules) {
  for (const int stage : {0, 3}) {
    EXPECT_EQ(microbatches_in_flight(ScheduleKind::kZbH1, stage, 4, 1, 64), Counts{4});
    EXPECT_EQ(microbatches_in_flight(ScheduleKind::kZbH2, stage, 4, 1, 64), Counts{7});
    EXPECT_EQ(microbatches_in_flight(ScheduleKind::kZbV, stage, 4, 2, 64), (Counts{4, 4}));
    EXPECT_EQ(microbatches_in_flight(ScheduleKind::kDualPipeV, stage, 4, 2, 64), (Counts{5, 5}));
    EXPECT_EQ(microbatches_in_flight(ScheduleKind::kGPipe, stage, 4, 1, 64), Counts{64});
  }
}

TEST(MemoryStages, PartsOfAllStagesAddUpToTheModel) {
  Json row = row_of_145b();
  row["layout"]["tp"] = 1;
  row["layout"]["vpp"] = 2;
  row["n_gpus"] = 8;
  row["model"]["layers"] = 78;  // the ends have a block less
  const PublishedRun run = run_of(row);
  const RunFrame frame = frame_of(run, {});
  const RunChoice choice = choices_of(run, frame).front();
  const MemorySizes of = memory_sizes(run, frame, choice);
  const double block = block_parameters(of, /*dense=*/true).sum();
  double sum = 0;
  const std::vector<MemoryStage> stages = memory_stages(of, frame, choice);
  ASSERT_EQ(stages.size(), 8u);
  for (const MemoryStage& stage : stages) sum += stage.dense;
  EXPECT_DOUBLE_EQ(sum, 78 * block);
  EXPECT_DOUBLE_EQ(stages.front().dense, 9 * block);
  EXPECT_DOUBLE_EQ(stages.at(3).dense, 10 * block);
  EXPECT_DOUBLE_EQ(stages.front().first, 51200.0 * 12288);
  EXPECT_DOUBLE_EQ(stages.back().last, 51200.0 * 12288);
  EXPECT_DOUBLE_EQ(stages.back().first, 0);
}

}  // namespace
}  // namespace lockstep::plan
