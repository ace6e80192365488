// The rough time of a step: what its actions ask of a machine.
#include "lockstep/plan/step_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/plan/test_layouts.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::plan {

using program::ActionKind;
using program::Layout;
using program::Program;
using program::build_program;
using program::layer_costs;

namespace {

constexpr config::Device kCpu = config::Device::kCpu;

double whole_seconds(const Layout& layout, const Program& program, int rank) {
  program::JudgedSteps whole;
  whole.made.push_back({.layout = layout, .program = program});
  return step_seconds(layout, whole, rank, kCpu);
}

// The slowest stage, and what of it the schedule leaves idle: (p - 1) / m in 1f1b.
TEST(StepCost, OfAPipelineHasTheTimeInWhichItFills) {
  config::RunConfig config = small_run();
  config.parallel.pp = 2;
  config.train.micro_batch = 1;
  using Kind = program::ScheduleKind;
  for (const auto& [schedule, fill] : {std::pair{Kind::kNaive, 1.0}, {Kind::kOneFOneB, 1.0 / 8}, {Kind::kZbH1, 1.0 / 24}, {Kind::kZbH2, 0.0}}) {
    config.parallel.schedule.kind = schedule;
    const Layout layout = layout_of(config, 2);
    const Program program = build_program(layout);
    const double slowest = std::max(seconds(step_cost(layout, program, 0), kCpu), seconds(step_cost(layout, program, 1), kCpu));
    EXPECT_DOUBLE_EQ(whole_seconds(layout, program, 0), slowest * (1 + fill)) << program::schedule_name(schedule);
  }
  config = small_run();
  const Layout alone = layout_of(config, 2);
  const Program program = build_program(alone);
  EXPECT_EQ(whole_seconds(alone, program, 1), seconds(step_cost(alone, program, 1), kCpu));
}

// All of it, and no cost model counts it again.
TEST(StepCost, CountsWhatMovesBetweenDeviceHostAndDisk) {
  config::RunConfig config = small_run();
  config.memory.offload.list = {config::Offloaded::kOptimizer};
  const Layout layout = layout_of(config, 2);
  const Program program = build_program(layout);
  double moved = 0;
  for (const auto& [key, totals] : program::predict_moves(layout, program, 0)) moved += static_cast<double>(totals.bytes);
  EXPECT_GT(moved, 0);
  EXPECT_EQ(step_cost(layout, program, 0).host, moved);
}

TEST(StepCost, CountsProductsTrafficAndWhatIsComputedAgain) {
  config::RunConfig config = small_run();
  const Layout plain = layout_of(config, 2);
  double forward = 0, backward = 0, blocks = 0, pointwise = 0;
  const std::vector<arch::LayerCost> costs = layer_costs(plain, 0);
  for (size_t i = 0; i < costs.size(); ++i) {
    forward += costs[i].forward_flops;
    backward += costs[i].backward_flops;
    if (i == 0 || i + 1 == costs.size()) continue;
    blocks += costs[i].forward_flops;
    pointwise += static_cast<double>(costs[i].memory_traffic);
  }
  const StepCost cost = step_cost(plain, build_program(plain), 0);
  EXPECT_EQ(cost.flops, forward + backward);
  EXPECT_EQ(cost.pointwise, 0);
  // The ring sends 2 (n - 1) / n of the gradients; loss beside it.
  EXPECT_NEAR(cost.network, 4.0 * static_cast<double>(plain.flat_layout(0).numel), 100);
  Program again = build_program(plain);
  Layout full = plain;
  full.recompute.assign(costs.size() - 2, arch::Recompute::kFull);
  auto& actions = own_list(again, 0);
  for (size_t layer = 1; layer + 1 < costs.size(); ++layer)
    actions.insert(actions.begin(), {.kind = ActionKind::kRecompute, .layer = static_cast<int>(layer), .microbatch = 0});
  const StepCost more = step_cost(full, again, 0);
  EXPECT_EQ(more.flops, cost.flops + blocks);
  EXPECT_EQ(more.pointwise, pointwise);
  EXPECT_GT(seconds(more, config::Device::kCpu), seconds(cost, config::Device::kCpu));
  EXPECT_GT(seconds(cost, config::Device::kCpu), seconds(cost, config::Device::kCuda));
}

// Of a step of which shorter ones were made: a sum over its microbatches.
TEST(StepCost, OfALongStepFollowsFromShorterOnes) {
  config::RunConfig config = small_run();
  config.parallel.pp = 2;
  config.train.micro_batch = 1;
  config.train.global_batch = 256;
  const Layout layout = layout_of(config, 4);
  const program::JudgedSteps steps = program::judged_steps(layout, 256);
  ASSERT_EQ(steps.made.size(), 2u);
  const double whole = whole_seconds(layout, build_program(layout), 0);
  EXPECT_NEAR(step_seconds(layout, steps, 0, kCpu) / whole, 1, 1e-9);
}

}  // namespace
}  // namespace lockstep::plan
