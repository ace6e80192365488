#include "lockstep/plan/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/plan/simulate.h"
#include "lockstep/plan/test_layouts.h"
#include "lockstep/program/passes/passes.h"

namespace lockstep::plan {
namespace {

TEST(StepTrace, ThereAndBack) {
  const StepTrace trace{.step = 10, .rank = 1, .world_size = 2, .actions = 5, .records = {{0, 0.125, 0.25}, {3, 1e-7, 2, 3e-6}},
                        .calls = {{0, "blocks.*.attention kv_1", 0.15, 0.2, 0.03125}, {3, "loss", 1, 1.5}}};
  EXPECT_EQ(parse_step_trace(step_trace_json(trace), "x"), trace);
  EXPECT_EQ(step_trace_name(10, 1), "step-10-rank-1.json");
  // Traces written before there was an overhead.
  const std::string old = R"({"format": "lockstep step trace 1", "step": 1, "rank": 0, "world_size": 1, "actions": 1, "records": [[0, 1, 2]]})";
  EXPECT_EQ(parse_step_trace(old, "x").records.at(0), (ActionRecord{0, 1, 2}));
}

TEST(StepTrace, RefusesOthers) {
  StepTrace trace{.step = 1, .rank = 0, .world_size = 1, .actions = 2, .records = {{0, 0, 1}, {1, 1, 2}}};
  const auto refused = [](const StepTrace& trace) {
    EXPECT_THROW(parse_step_trace(step_trace_json(trace), "x"), DataError);
  };
  EXPECT_THROW(parse_step_trace("{}", "x"), DataError);
  trace.records[1].action = 0;
  refused(trace);
  trace.records[1].action = 2;
  refused(trace);
  trace.records[1] = {1, 2, 1};
  refused(trace);
}

TEST(StepTrace, TellsOfCallsInsideLayersWhatIsHidden) {
  const std::vector<StepTrace> traces = {
      {.world_size = 2, .actions = 1, .records = {{0, 1, 9}}, .calls = {{0, "a", 2, 4, 0.5}, {0, "b", 2, 3, 3}, {0, "a", 5, 6}}},
      {.rank = 1, .world_size = 2, .actions = 1, .records = {{0, 2, 9}}, .calls = {{0, "a", 3, 4, 0.5}}}};
  const CallsOfRanks calls = measured_calls(traces);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[1].at(0), (CallRecord{0, "a", 2, 3, 0.5})) << "from the first action of any rank on";
  const std::vector<CallTotals> totals = call_totals(calls);
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0].what, "a");
  EXPECT_EQ(totals[0].calls, 1.5);
  EXPECT_EQ(totals[0].seconds, 2);
  EXPECT_EQ(totals[0].waited, 0.5);
  EXPECT_EQ(totals[0].hidden(), 0.75);
  EXPECT_EQ(totals[1].waited, 0.5) << "no more than it ran";
  EXPECT_TRUE(call_totals({}).empty());
}

TEST(StepTrace, OverheadOfAnAction) {
  EXPECT_EQ(overhead({}).actions, 0);
  const Overhead found = overhead({{.records = {{0, 0, 1, 2e-6}, {1, 1, 2, 4e-6}}}, {.rank = 1, .records = {{0, 0, 1, 9e-6}}}});
  EXPECT_EQ(found.actions, 3);
  EXPECT_NEAR(found.mean, 5e-6, 1e-15);
  EXPECT_NEAR(found.median, 4e-6, 1e-15);
  EXPECT_NEAR(found.worst_rank, 9e-6, 1e-15);
}

// What a simulation says, written as a trace and taken as measurement, gives the same simulation again.
TEST(StepTrace, MeasuredTimesReproduceTheirStep) {
  const PipelineCase of{.ranks = 3, .microbatches = 5};
  const program::Layout layout = pipeline_layout(of);
  const program::Program program =
      program::transfer_activations(program::expand_layers(program::schedule(layout), layout), layout);
  ActionTimes times = unit_times(program, layout);
  double drift = 0;
  for (std::vector<double>& row : times.seconds)
    for (double& seconds : row) seconds += 0.01 * (drift = drift > 7 ? 0 : drift + 1);
  const Simulation simulation = simulate(program, layout, times);
  std::vector<StepTrace> traces;
  for (int rank = 0; rank < 3; ++rank) {
    StepTrace& trace = traces.emplace_back();
    const std::vector<Span>& row = simulation.spans[static_cast<size_t>(rank)];
    trace = {.step = 4, .rank = rank, .world_size = 3, .actions = static_cast<int>(row.size())};
    for (int i = 0; i < trace.actions; ++i) trace.records.push_back({i, row[static_cast<size_t>(i)].start, row[static_cast<size_t>(i)].end});
  }
  const Spans measured = measured_spans(program, layout, traces);
  const Simulation again = simulate(program, layout, measured_times(program, layout, measured));
  EXPECT_NEAR(again.use.step_seconds, simulation.use.step_seconds, 1e-9);
  EXPECT_NEAR(utilisation(program, measured).bubble(), simulation.use.bubble(), 1e-9);
}

// Of five microbatches in two steps: one slow F, and a W that takes longer from step to step.
TEST(StepTrace, TypicalTimesAreMediansOverMicrobatchesAndSteps) {
  const PipelineCase of{.kind = program::ScheduleKind::kZbH1, .ranks = 2, .microbatches = 5};
  const program::Layout layout = pipeline_layout(of);
  const program::Program program =
      program::transfer_activations(program::expand_layers(program::schedule(layout), layout), layout);
  const ActionTimes plain = unit_times(program, layout);
  std::vector<ActionTimes> steps = {plain, plain};
  for (size_t i = 0; i < program.list(0).size(); ++i) {
    const program::Action& action = program.list(0)[i];
    if (action.kind == program::ActionKind::kForward && action.microbatch == 2) steps[0].seconds[0][i] = 50;
    if (action.kind == program::ActionKind::kBackwardWeight) steps[1].seconds[0][i] *= 3;
  }
  const ActionTimes typical = typical_times(program, steps);
  EXPECT_EQ(typical.source, "medians over 2 steps");
  EXPECT_EQ(typical.seconds[1], plain.seconds[1]);
  for (size_t i = 0; i < program.list(0).size(); ++i) {
    const double factor = program.list(0)[i].kind == program::ActionKind::kBackwardWeight ? 2 : 1;  // between 1 and 3
    EXPECT_NEAR(typical.seconds[0][i], factor * plain.seconds[0][i], 1e-12) << i;
  }
}

}  // namespace
}  // namespace lockstep::plan
