// Simulations of every schedule held against the closed forms of the papers.
#include "lockstep/plan/bubble.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/plan/simulate.h"
#include "lockstep/plan/test_layouts.h"

namespace lockstep::plan {
namespace {

using program::ScheduleKind;

constexpr ScheduleKind kAll[] = {ScheduleKind::kNaive, ScheduleKind::kGPipe, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved,
                                 ScheduleKind::kZbH1,  ScheduleKind::kZbH2,  ScheduleKind::kZbV,      ScheduleKind::kDualPipeV};

// Backward runs in two parts, I and W.
bool splits_backward(ScheduleKind kind) { return kind == ScheduleKind::kZbH1 || kind == ScheduleKind::kZbH2 || program::v_shaped(kind); }

// Those of so many stages a rank that the schedule can have.
std::vector<PipelineCase> cases(ScheduleKind kind) {
  std::vector<PipelineCase> found;
  for (int p : {2, 3, 4, 8}) {
    for (int rounds : {1, 2, 4}) {
      for (int v : {1, 2}) {
        const bool two = program::v_shaped(kind), any = kind == ScheduleKind::kInterleaved;
        if (two ? v == 2 : any || v == 1)
          found.push_back({.kind = kind, .ranks = p, .microbatches = rounds * p, .virtual_stages = v});
      }
    }
  }
  return found;
}

std::string name(const PipelineCase& of) {
  return cat(program::schedule_name(of.kind), ", ", of.ranks, " ranks x ", of.virtual_stages, ", ", of.microbatches, " microbatches");
}
program::ScheduleInput input(const PipelineCase& of) {
  return {.kind = of.kind, .ranks = of.ranks, .virtual_stages = of.virtual_stages, .microbatches = of.microbatches};
}

TEST(Bubble, SimulationsHaveThatOfTheFormulas) {
  for (const ScheduleKind kind : kAll) {
    for (const PipelineCase& of : cases(kind)) {
      if (!bubble_share(input(of))) {
        EXPECT_TRUE(splits_backward(kind) && of.microbatches < 2 * of.ranks) << name(of);
        continue;
      }
      const program::Program program = stage_program(of);
      const program::Layout layout = pipeline_layout(of);
      const Utilisation use = simulate(program, layout, unit_times(program, layout)).use;
      EXPECT_NEAR(use.bubble(), bubble_share(input(of)).value().value, 1e-9) << name(of);
      for (const double busy : use.busy) EXPECT_NEAR(busy, 3.0 * of.microbatches * of.virtual_stages, 1e-9) << name(of);
    }
  }
}

TEST(Bubble, NoMoreMicrobatchesInFlightThanTheFormulasSay) {
  for (const ScheduleKind kind : kAll) {
    for (const PipelineCase& of : cases(kind)) {
      const program::Program program = stage_program(of);
      for (int rank = 0; rank < of.ranks; ++rank) {
        const int counted = count_in_flight(program.list(rank));
        const int formula = most_in_flight(input(of), rank).value();
        EXPECT_LE(counted, formula) << name(of) << ", rank " << rank;
        if (splits_backward(kind)) continue;
        EXPECT_EQ(counted, formula) << name(of) << ", rank " << rank;
      }
    }
  }
}

// Numbers that the papers print. Narayanan et al. 2021, section 2.2: bubble / ideal time is (p - 1) / m, and 1 / v of it interleaved.
// Qi et al. 2023, table 1: (p - 1)(F + I + W), (p - 1)(F + I - W), (p - 1)(F + I - 2 W).
TEST(Bubble, FormulasOfThePapers) {
  const StageTimes times{.forward = 10, .input = 11, .weight = 8};
  EXPECT_EQ(bubble_time({.kind = ScheduleKind::kOneFOneB, .ranks = 8, .microbatches = 24}, times), 7 * 29);
  EXPECT_EQ(bubble_time({.kind = ScheduleKind::kZbH1, .ranks = 8, .microbatches = 24}, times), 7 * 13);
  EXPECT_EQ(bubble_time({.kind = ScheduleKind::kZbH2, .ranks = 8, .microbatches = 24}, times), 7 * 5);
  const auto over_ideal = [](const program::ScheduleInput& input) { return bubble_time(input) / (input.microbatches * input.virtual_stages * 3); };
  EXPECT_NEAR(over_ideal({.kind = ScheduleKind::kGPipe, .ranks = 4, .microbatches = 8}), 3.0 / 8, 1e-12);
  EXPECT_NEAR(over_ideal({.kind = ScheduleKind::kInterleaved, .ranks = 4, .virtual_stages = 2, .microbatches = 8}), 3.0 / 16, 1e-12);
}

TEST(Bubble, TheTableHasARowForEverySchedule) {
  const std::string table = schedule_table(4, 8, 2);
  for (const ScheduleKind kind : kAll) EXPECT_NE(table.find(cat("\n", program::schedule_name(kind), " ")), std::string::npos) << table;
}

}  // namespace
}  // namespace lockstep::plan
