#include "lockstep/plan/time/step_estimate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/time/breakdown.h"
#include "lockstep/plan/time/product_seconds.h"
#include "lockstep/plan/time/test_times.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::plan {
namespace {

using namespace test_times;

using config::RunConfig;

struct Case {
  const char* text;
  SmallRun run;
  void (*change)(RunConfig&);
};
// Each makes actions, or groups of ranks, that the others do not have.
const Case kCases[] = {
    {"one rank", {}, [](RunConfig&) {}},
    {"copies", {.ranks = 8}, [](RunConfig&) {}},
    {"parameter server", {.ranks = 4}, [](RunConfig& c) { c.parallel.data_parallel = config::DataParallel::kParameterServer; }},
    {"zero 1", {.ranks = 8}, [](RunConfig& c) { c.parallel.zero = 1; }},
    {"zero 2", {.ranks = 8}, [](RunConfig& c) { c.parallel.zero = 2; }},
    {"zero 3 in bf16", {.ranks = 8}, [](RunConfig& c) { c.parallel.zero = 3, c.parallel.reduce_precision = config::Precision::kBf16; }},
    {"hybrid shards", {.ranks = 8}, [](RunConfig& c) { c.parallel.zero = 3, c.parallel.dp_replicate = 2; }},
    {"tensor", {.ranks = 4}, [](RunConfig& c) { c.parallel.tp = 4, c.parallel.row_groups = true; }},
    {"context ring", {.ranks = 4}, [](RunConfig& c) { c.parallel.cp = 4; }},
    {"context 2d", {.ranks = 4}, [](RunConfig& c) { c.parallel.cp = 4, c.parallel.context = config::ContextKind::k2d, c.parallel.context_inner = 2; }},
    {"1f1b, tied", {.preset = "gpt2-test", .ranks = 4, .layers = 4}, [](RunConfig& c) { c.parallel.pp = 2; }},
    {"interleaved", {.ranks = 4, .layers = 6}, [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule.kind = config::ScheduleKind::kInterleaved; }},
    {"zb-v", {.ranks = 4, .layers = 6}, [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule.kind = config::ScheduleKind::kZbV; }},
    {"validated later", {.ranks = 4, .layers = 6},
     [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule.kind = config::ScheduleKind::kZbH2, c.parallel.post_validation = config::PostValidation::kOn; }},
    {"experts", {.preset = "mixtral-test", .ranks = 8}, [](RunConfig& c) { c.parallel.ep = 4, c.parallel.zero = 1; }},
    {"experts over nodes", {.preset = "mixtral-test", .ranks = 8},
     [](RunConfig& c) { c.parallel.ep = 8, c.parallel.dispatcher = config::Dispatcher::kHierarchical, c.parallel.ranks_per_node = 4; }},
    {"experts in turns", {.preset = "mixtral-test", .ranks = 4}, [](RunConfig& c) { c.parallel.ep = 4, c.parallel.overlap_experts = true; }},
    {"latent attention", {.preset = "deepseek-test", .ranks = 4}, [](RunConfig& c) { c.parallel.tp = 2; }},
    {"state spaces", {.preset = "hybrid-test", .ranks = 2}, [](RunConfig& c) { c.parallel.cp = 2; }},
    {"recomputed", {.ranks = 4}, [](RunConfig& c) { c.parallel.tp = 2, c.memory.recompute.list = {config::Recompute::kFull}; }},
    {"offloaded", {.ranks = 2},
     [](RunConfig& c) {
       c.parallel.zero = 3;
       c.memory.offload.list = {config::Offloaded::kOptimizer, config::Offloaded::kParameters, config::Offloaded::kActivations};
       c.memory.recompute.list = {config::Recompute::kFull};
     }},
    {"whole matrices", {.ranks = 4}, [](RunConfig& c) { c.parallel.zero = 1, c.optimizer.kind = config::OptimizerKind::kMuon; }},
};

StepEstimate estimate(const program::Layout& layout, const Cluster& cluster = small_cluster(2), EstimateOptions options = {.traffic = false}) {
  return estimate_step(layout, cluster, stack_of(cluster.device, Kernels::kCurrent), options);
}

TEST(StepEstimate, TermsAddUpToTheStepInEveryKindOfLayout) {
  for (const Case& of : kCases) {
    const program::Layout layout = small_layout(of.run, of.change);
    const StepEstimate step = estimate(layout);
    EXPECT_GT(step.seconds, 0) << of.text;
    EXPECT_NEAR(step.breakdown.sum(), step.seconds, 1e-9 * step.seconds) << of.text;
    for (const BreakdownTerm term : kBreakdownTerms) EXPECT_GE(step.breakdown.*term, -1e-9 * step.seconds) << of.text;
    EXPECT_LT(step.low, step.seconds) << of.text;
    EXPECT_GT(step.high, step.seconds) << of.text;
    EXPECT_EQ(step.stages.size(), static_cast<size_t>(layout.pipeline.ranks)) << of.text;
    EXPECT_FALSE(step.widest.empty()) << of.text;
    for (const StageEstimate& stage : step.stages) EXPECT_LE(stage.busy, step.seconds * (1 + 1e-9)) << of.text;
  }
}

// The walk of all microbatches against what is read off two shorter ones.
TEST(StepEstimate, LongStepsAreReadOffShortOnes) {
  const program::Layout layout = small_layout({.ranks = 2, .layers = 6}, [](RunConfig& c) {
    c.parallel.pp = 2;
    c.train.global_batch = 2000;
  });
  const Cluster cluster = small_cluster();
  Stack stack = stack_of(cluster.device, Kernels::kCurrent);
  stack.straggle = 0;
  EstimateOptions options{.traffic = false};
  ASSERT_EQ(program::judged_steps(layout).made.size(), 2U);
  const StepEstimate judged = estimate_step(layout, cluster, stack, options);
  options.spans = true;  // drawn whole
  const StepEstimate whole = estimate_step(layout, cluster, stack, options);
  EXPECT_NEAR(judged.seconds, whole.seconds, 1e-9 * whole.seconds);
  for (const BreakdownTerm term : kBreakdownTerms) EXPECT_NEAR(judged.breakdown.*term, whole.breakdown.*term, 1e-6 * whole.seconds);
  double last = 0;
  for (const TimedBox& box : whole.boxes) last = std::max(last, box.end);
  EXPECT_NEAR(last, whole.seconds, 1e-3 * whole.seconds);
  EXPECT_TRUE(judged.boxes.empty());
}

// 6 FLOPs a multiplication and token: of attention without a mask a token sees half a sequence more (Narayanan et al. 2021, appendix).
TEST(StepEstimate, FlopsByBothConventions) {
  const program::Layout layout = small_layout({.preset = "gpt2-test", .ranks = 2});
  const StepEstimate step = estimate(layout);
  EXPECT_EQ(step.tokens, 16 * 32);
  EXPECT_NEAR(step.model_flops_causal, arch::model_flops_per_token(layout.model, 32) * step.tokens, 1e-3);
  const double more = 12.0 * 48 * 16 * 2;  // h, half of s, layers
  EXPECT_NEAR(step.model_flops_noncausal - step.model_flops_causal, more * step.tokens, 1e-6 * step.model_flops_causal);
  EXPECT_NEAR(step.mfu_causal, step.model_flops_causal / (step.seconds * 2 * 100e12), 1e-12);
}

TEST(StepEstimate, MemoryIsThatOfTheProgram) {
  const program::Layout layout = small_layout({.ranks = 4, .layers = 6}, [](RunConfig& c) { c.parallel.pp = 2; });
  const Cluster cluster = small_cluster();
  Stack stack = stack_of(cluster.device, Kernels::kCurrent);
  stack.fragmentation = 0.05;
  stack.reserved = 1e9;
  const StepEstimate step = estimate_step(layout, cluster, stack, {.traffic = false});
  const program::Program program = program::make_program(layout);
  program::RankMemory memory(layout, program);
  for (const StageEstimate& stage : step.stages) {
    const program::MemoryBytes& bytes = memory.of(stage.stage * layout.pipelines());
    EXPECT_EQ(stage.peak, static_cast<double>(bytes.peak));
    EXPECT_EQ(stage.parameters, static_cast<double>(bytes[program::MemoryCategory::kParameters]));
    EXPECT_EQ(stage.activations, static_cast<double>(bytes[program::MemoryCategory::kActivations]));
    EXPECT_DOUBLE_EQ(stage.reserved, stage.peak * 1.05 + 1e9);
    EXPECT_EQ(stage.layers, 3);
  }
  EXPECT_TRUE(step.fits);
  Cluster little = cluster;
  little.device.memory = 1e9;
  EXPECT_FALSE(estimate_step(layout, little, stack, {.traffic = false}).fits);
}

// Not of all rows of all ranks, for which the program itself has room.
TEST(StepEstimate, MemoryOfExpertsIsThatOfTheirLoad) {
  const program::Layout layout = small_layout({.preset = "mixtral-test", .ranks = 8}, [](RunConfig& c) { c.parallel.ep = 8; });
  const auto activations = [&](double imbalance) { return estimate(layout, small_cluster(2), {.imbalance = imbalance, .traffic = false}).stages[0].activations; };
  const program::Program program = program::make_program(layout);
  const auto worst = static_cast<double>(program::predict_memory(layout, program, 0)[program::MemoryCategory::kActivations]);
  EXPECT_LT(activations(1), activations(1.5));
  EXPECT_LT(activations(1.5), worst);
  EXPECT_EQ(activations(1e6), worst);
}

TEST(StepEstimate, OneSlowNodeIsWaitedForByAll) {
  const program::Layout layout = small_layout({.ranks = 8}, [](RunConfig& c) { c.parallel.tp = 2; });
  Cluster cluster = small_cluster(2);
  const double healthy = estimate(layout, cluster).seconds;
  cluster.slow.nodes = {{1, 0.5}};
  const double one = estimate(layout, cluster).seconds;
  cluster.slow.nodes = {{0, 0.5}, {1, 0.5}};
  const double all = estimate(layout, cluster).seconds;
  EXPECT_GT(one, healthy);
  EXPECT_NEAR(one, all, 1e-9 * all);
}

TEST(StepEstimate, ASlowStageOfAPipelineMakesBubbles) {
  const program::Layout layout = small_layout({.ranks = 8, .layers = 6}, [](RunConfig& c) { c.parallel.pp = 2; });
  Cluster cluster = small_cluster(2);
  const StepEstimate healthy = estimate(layout, cluster);
  cluster.slow.nodes = {{1, 0.5}};
  const StepEstimate slow = estimate(layout, cluster);
  EXPECT_GT(slow.seconds, healthy.seconds);
  EXPECT_NEAR(slow.stages[0].busy, healthy.stages[0].busy, 1e-9);
  EXPECT_GT(slow.stages[1].busy, 1.2 * healthy.stages[1].busy);  // launches are as fast as before
}

TEST(StepEstimate, FasterNetworksShortenWaitsAlone) {
  const program::Layout layout = small_layout({.ranks = 8}, [](RunConfig& c) { c.parallel.zero = 3; });
  Cluster cluster = small_cluster(2);
  const StepEstimate before = estimate(layout, cluster);
  cluster.network.nic *= 4;
  const StepEstimate after = estimate(layout, cluster);
  EXPECT_LT(after.breakdown.data, before.breakdown.data);
  EXPECT_NEAR(after.breakdown.products, before.breakdown.products, 1e-12);
}

TEST(StepEstimate, TrafficIsCountedWhereAskedFor) {
  const program::Layout layout = small_layout({.ranks = 8});
  EXPECT_TRUE(estimate(layout).traffic.axes.empty());
  EXPECT_FALSE(estimate(layout, small_cluster(2), {.traffic = true}).traffic.axes.empty());
}

TEST(StepEstimate, LinearsInFp8NeedADeviceThatHasThem) {
  const program::Layout layout = small_layout();
  Cluster cluster = small_cluster();
  const EstimateOptions fp8{.linears = Linears::kFp8, .traffic = false};
  EXPECT_GT(estimate(layout, cluster, fp8).seconds, 0);
  cluster.device.flops_fp8 = 0;
  EXPECT_THROW(estimate(layout, cluster, fp8), ConfigError);
}

TEST(StepEstimate, MeasuredProductsReplaceTheFormula) {
  const program::Layout layout = small_layout();
  const Cluster cluster = small_cluster();
  ProductTable table;
  table.add("test device", {.m = 64, .n = 288, .k = 48}, ProductType::kBf16, 1.0);  // gate and up, forward
  const EstimateOptions measured{.traffic = false, .products = &table};
  EXPECT_NEAR(estimate(layout, cluster, measured).breakdown.products, 3.0 * 8, 0.1);  // blocks, microbatches
}

TEST(StepEstimate, RanksOnCpusInFp32) {
  const program::Layout layout = small_layout({.ranks = 2}, [](RunConfig& c) { c.train.precision = config::Precision::kFp32; });
  Cluster cluster = small_cluster();
  cluster.device.generation = Generation::kCpu;
  cluster.device.flops_bf16 = cluster.device.flops_fp8 = 0;
  cluster.device.flops_fp32 = 1e11;
  cluster.device.memory_bandwidth = 1e10;
  cluster.device.processors = 0;
  const StepEstimate step = estimate(layout, cluster);
  EXPECT_GT(step.mfu_causal, 0);
  EXPECT_LT(step.mfu_causal, 1);
  EXPECT_NEAR(step.breakdown.sum(), step.seconds, 1e-9 * step.seconds);
}

TEST(StepEstimate, MoreRanksThanDevicesAreRefused) {
  const program::Layout layout = small_layout({.ranks = 16}, [](RunConfig& c) { c.parallel.tp = 2; });
  EXPECT_THROW(estimate(layout, small_cluster(2)), InternalError);
}

}  // namespace
}  // namespace lockstep::plan
