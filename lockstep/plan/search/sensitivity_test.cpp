// Sensitivities by a source of times whose formulas say what they must be.
#include "lockstep/plan/search/sensitivity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/plan/search/test_search.h"

namespace lockstep::plan {
namespace {

using test_search::TestJob;

constexpr double kWork = 3e-3;  // seconds of a layer's pass over one sequence at the peak

// A pass of a layer: the work of its sequences at a share of the peak, and one launch.
double pass_seconds(double sequences, const Stack& stack) { return kWork * sequences / stack.product_cap + stack.launch; }

// A step of one device, forward and twice that backward, without what is recomputed.
double step_seconds(const program::Layout& layout, const Stack& stack) {
  return static_cast<double>(layout.num_microbatches()) * layout.num_layers() * 3 * pass_seconds(static_cast<double>(layout.micro_batch), stack);
}

// Micro-batch 4 needs all of the device but 2.1e9 bytes.
double peak_of(const program::Layout& layout) { return layout.micro_batch == 4 ? 80e9 - 2.1e9 : 30e9; }

TimeSource source() {
  TimeSource times;
  times.layer = [](const program::Layout& layout, int, int, const Placement&, const Stack& stack, const EstimateOptions&) {
    LayerSeconds seconds;
    for (LayerSeconds::Part* part : {&seconds.forward, &seconds.input, &seconds.weight})
      part->products = pass_seconds(static_cast<double>(layout.micro_batch), stack);
    return seconds;
  };
  times.step = [](const program::Layout& layout, const Cluster& cluster, const Stack& stack, const EstimateOptions&) {
    StepEstimate estimate;
    estimate.seconds = estimate.breakdown.products = step_seconds(layout, stack);
    estimate.stages = {{.peak = peak_of(layout), .reserved = peak_of(layout) + stack.reserved}};
    estimate.fits = estimate.stages[0].reserved <= cluster.device.memory;
    return estimate;
  };
  times.constants = {{"product_cap", &Stack::product_cap}, {"launch", &Stack::launch}, {"straggle", &Stack::straggle},
                     {"memory_share", &Stack::memory_share}, {"reserved", &Stack::reserved}};
  return times;
}

TestJob job_by_formula() {
  TestJob job = test_search::test_job({.preset = "gpt2-124m", .cluster = "1xa100", .batch = 4, .length = 64, .layers = 4});
  job.cluster.device.memory = 80e9;
  job.stack = Stack{.name = "formula"};
  job.stack.product_cap = 0.5;
  job.stack.launch = 1e-3;
  job.stack.host_share = job.stack.straggle = job.stack.optimizer_bytes = job.stack.fragmentation = 0;
  job.stack.reserved = 2e9;
  job.times = source();
  return job;
}

const Sensitivity& of(const SearchResult& result, const std::string& name) {
  const auto found = std::ranges::find_if(result.sensitivity, [&](const Sensitivity& one) { return one.constant == name; });
  EXPECT_NE(found, result.sensitivity.end()) << name;
  return *found;
}

TEST(Sensitivity, IsWhatTheFormulaSays) {
  const TestJob job = job_by_formula();
  const SearchResult result = search_layouts(job.job(), {.fixed = parse_fixed("recompute=none,offload_optimizer=false"), .spare = 0});
  ASSERT_GE(result.best.size(), 2U);
  EXPECT_EQ(result.best[0].candidate.micro_batch, 4);  // fewest launches
  EXPECT_EQ(result.best[1].candidate.micro_batch, 2);
  const double work = kWork * 4 / 0.5, launch = 1e-3, all = work + launch;
  EXPECT_NEAR(result.best[0].estimate.seconds, 6 * 3 * all, 1e-12);
  EXPECT_NEAR(of(result, "product_cap").minus, work / all * (1 / 0.9 - 1), 1e-9);
  EXPECT_NEAR(of(result, "product_cap").plus, work / all * (1 / 1.1 - 1), 1e-9);
  EXPECT_NEAR(of(result, "launch").minus, -0.1 * launch / all, 1e-9);
  EXPECT_NEAR(of(result, "launch").plus, 0.1 * launch / all, 1e-9);
  EXPECT_FALSE(of(result, "product_cap").order_changes);
  EXPECT_FALSE(of(result, "launch").order_changes);
  // No time depends on it; what is 0 has no tenth.
  EXPECT_NEAR(of(result, "memory_share").plus, 0, 1e-12);
  EXPECT_EQ(result.sensitivity.size(), 4U);
}

// With a tenth more beside it the best one does not fit any more: another is.
TEST(Sensitivity, SaysWhereAnotherLayoutIsBestThen) {
  const TestJob job = job_by_formula();
  const SearchResult result = search_layouts(job.job(), {.fixed = parse_fixed("recompute=none,offload_optimizer=false"), .spare = 0});
  EXPECT_TRUE(of(result, "reserved").order_changes);
  EXPECT_EQ(of(result, "reserved").plus, 0);
}

}  // namespace
}  // namespace lockstep::plan
