#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/plan/time/layer_traffic.h"
#include "lockstep/plan/time/rank_layers.h"
#include "lockstep/plan/time/test_times.h"

namespace lockstep::plan {
namespace {

using namespace test_times;

using program::Action;
using program::ActionKind;

constexpr const char* kPresets[] = {"gpt2-test", "llama-test", "mixtral-test", "deepseek-test", "mamba2-test", "hybrid-test", "hybrid-experts-test"};

struct Ideal {
  DeviceKind device = ideal_device();
  Stack stack = ideal_stack();
  EstimateOptions options{};
  KernelSeconds kernels{device, stack, options};
};

// Everything at the peak: seconds are FLOPs, which are those of the step's ledger of costs.
TEST(LayerSeconds, AtThePeakProductsTakeTheirFlops) {
  for (const char* preset : kPresets)
    for (const int tp : {1, 2}) {
      const program::Layout layout = small_layout({.preset = preset, .ranks = tp}, [&](config::RunConfig& config) { config.parallel.tp = tp; });
      const Ideal ideal;
      double step = 0, costs = 0;
      for (const arch::LayerSpec& layer : arch::layer_table(layout.model)) {
        const arch::CostInput input = layout.cost_input(0);
        const arch::LayerCost cost = arch::layer_cost(layout.model, layer, input);
        const LayerKernels kernels = ideal.kernels.of(layout.model, layer, input);
        const auto flops = [](const PartTimes& parts) { return 1e12 * (sum(parts).products + sum(parts).attention); };
        EXPECT_NEAR(flops(kernels.forward), cost.forward_flops, 1e-9 * cost.forward_flops) << preset << " " << layer.name;
        EXPECT_NEAR(flops(kernels.input), cost.input_flops(), 1e-9 * cost.backward_flops) << preset << " " << layer.name;
        EXPECT_NEAR(flops(kernels.weight), cost.weight_flops, 1e-9 * cost.backward_flops) << preset << " " << layer.name;
        step += flops(kernels.forward) + flops(kernels.input) + flops(kernels.weight);
        costs += cost.forward_flops + cost.backward_flops;
      }
      EXPECT_NEAR(step, costs, 1e-9 * costs);
    }
}

TEST(LayerSeconds, UnfusedAttentionMultipliesWholeSquaresAndBackwardTwice) {
  Ideal ideal;
  ideal.stack.kernels = Kernels::kUnfused;
  const program::Layout layout = small_layout({.preset = "gpt2-test"});
  const LayerKernels kernels = ideal.kernels.of(layout.model, arch::layer_spec(layout.model, 1), layout.cost_input(0));
  const double tokens = 2 * 32, hidden = 48;
  EXPECT_NEAR(sum(kernels.forward).attention, 4 * tokens * 32 * hidden / 1e12, 1e-18);
  EXPECT_NEAR(sum(kernels.input).attention, 2 * sum(kernels.forward).attention, 1e-18);
  EXPECT_NEAR(sum(kernels.restore).attention, sum(kernels.forward).attention, 1e-18);
}

// Where kernels of a time had no fused form for them; layers with a window are not concerned.
TEST(LayerSeconds, LayersBesideThoseWithAWindowMayRunUnfused) {
  Ideal ideal;
  program::Layout layout = small_layout();
  layout.model.blocks = {arch::usual_block(), arch::usual_block()};
  layout.model.blocks[0][0].window = 8;
  const auto attention = [&](int layer) { return sum(ideal.kernels.of(layout.model, arch::layer_spec(layout.model, layer), layout.cost_input(0)).forward).attention; };
  const double with_window = attention(1), without = attention(2);
  ideal.stack.unfused_beside_windows = 1;
  EXPECT_EQ(attention(1), with_window);
  EXPECT_GT(attention(2), 2 * without);
  layout.model.blocks[0][0].window.reset();
  EXPECT_NEAR(attention(2), without, 1e-18) << "no layer has a window";
}

TEST(LayerSeconds, ShortSequencesAndNarrowHeadsAreSlower) {
  Ideal ideal;
  const program::Layout layout = small_layout();  // heads of 4
  const auto attention = [&] {
    return sum(ideal.kernels.of(layout.model, arch::layer_spec(layout.model, 1), layout.cost_input(0)).forward).attention;
  };
  const double fast = attention();
  ideal.stack.attention_ramp = 96;
  EXPECT_NEAR(attention(), fast * (32.0 + 96) / 32, 1e-18);
  ideal.stack.narrow_heads = 0.5;
  EXPECT_NEAR(attention(), 2 * fast * (32.0 + 96) / 32, 1e-18);
}

// Korthikanti et al. 2022, section 4: of h 12 and f 4 h, 22 h + 16 f bytes a token, half of it (8 and 8 f) with a gate more.
TEST(LayerSeconds, PointwiseTrafficOfABlock) {
  const auto traffic = [](const program::Layout& layout, int rank = 0) {
    const arch::CostInput input = layout.cost_input(rank);
    const arch::LayerDescription layer = arch::describe_layer(layout.model, arch::layer_spec(layout.model, 1), input);
    const std::array<double, 3> bytes = block_traffic(layout.model, layer, input, 1);
    return bytes[0] + bytes[1] + bytes[2];
  };
  const double tokens = 2 * 32;
  EXPECT_DOUBLE_EQ(traffic(small_layout({.preset = "gpt2-test"})), tokens * (22 * 48 + 16 * 192));
  EXPECT_DOUBLE_EQ(traffic(small_layout()), tokens * (22 * 48 + 24 * 144));
  const auto sharded = [](bool rows) {
    return small_layout({.ranks = 2}, [&](config::RunConfig& config) {
      config.parallel.tp = 2;
      config.parallel.sequence_parallel = rows;
    });
  };
  EXPECT_DOUBLE_EQ(traffic(sharded(true)), tokens * (22 * 48 + 24 * 144) / 2);
  EXPECT_DOUBLE_EQ(traffic(sharded(false)), tokens * (22 * 48 + 24 * 72));
  const program::Layout experts = small_layout({.preset = "mixtral-test"});
  const auto k = static_cast<double>(experts.model.experts.per_token), count = static_cast<double>(experts.model.experts.count);
  EXPECT_DOUBLE_EQ(traffic(experts), tokens * (22 * 64 + k * 24 * static_cast<double>(experts.model.experts.ffn) + k * 12 * 64 + 16 * count));
}

TEST(LayerSeconds, TheHeadReadsAndWritesItsLogits) {
  Ideal ideal;
  ideal.device.memory_bandwidth = 1e9;
  ideal.device.flops_bf16 = 1e30;
  ideal.stack.logit_bytes = 20;
  const program::Layout layout = small_layout();
  const int head = layout.num_layers() - 1;
  const LayerKernels kernels = ideal.kernels.of(layout.model, arch::layer_spec(layout.model, head), layout.cost_input(0));
  EXPECT_DOUBLE_EQ(sum(kernels.input).pointwise, 20 * 64.0 * 512 / 1e9);
  EXPECT_EQ(sum(kernels.forward).sum(), 0);
}

TEST(LayerSeconds, FullRecomputationIsAForwardPass) {
  Ideal ideal;
  const program::Layout layout = small_layout();
  const arch::LayerSpec block = arch::layer_spec(layout.model, 1);
  const LayerKernels whole = ideal.kernels.of(layout.model, block, layout.cost_input(0));
  EXPECT_NEAR(sum(whole.again).sum(), sum(whole.forward).sum(), 1e-18);
  // This library's engine leaves out the last product, whose result nobody reads.
  ideal.stack.recompute_outputs = 0;
  const LayerKernels own = ideal.kernels.of(layout.model, block, layout.cost_input(0));
  EXPECT_NEAR(1e12 * (sum(whole.again).sum() - sum(own.again).sum()), 2.0 * 64 * 144 * 48, 1);
}

TEST(LayerSeconds, TheBusiestExpertsHaveMoreRows) {
  Ideal ideal;
  const program::Layout layout = small_layout({.preset = "mixtral-test"});
  const auto grouped = [&] { return sum(ideal.kernels.of(layout.model, arch::layer_spec(layout.model, 1), layout.cost_input(0)).forward).products; };
  const double even = grouped();
  ideal.options.imbalance = 1.5;
  const arch::ExpertSizes& experts = layout.model.experts;
  const double flops = 2.0 * 64 * static_cast<double>(experts.per_token) * 3 * static_cast<double>(experts.ffn) * 64;
  EXPECT_NEAR(1e12 * (grouped() - even), 0.5 * flops, 1e-6 * flops);
}

TEST(LayerSeconds, LinearsInFp8AloneAreFaster) {
  Ideal ideal;
  ideal.device.flops_fp8 = 4e12;
  ideal.stack.cast_bytes = 0;
  const program::Layout layout = small_layout();
  const auto of = [&](int layer) { return sum(ideal.kernels.of(layout.model, arch::layer_spec(layout.model, layer), layout.cost_input(0)).input); };
  const KernelTimes block = of(1), head = of(layout.num_layers() - 1);
  ideal.options.linears = Linears::kFp8;
  EXPECT_NEAR(of(1).products, block.products / 4, 1e-18);
  EXPECT_NEAR(of(1).attention, block.attention, 1e-18);
  EXPECT_NEAR(of(layout.num_layers() - 1).products, head.products, 1e-18);
}

// Without sequence parallelism: two sums of all rows forward, two backward (Shoeybi et al. 2019).
TEST(LayerSeconds, WhatOfTensorParallelismIsWaitedFor) {
  const program::Layout layout = small_layout({.preset = "gpt2-test", .ranks = 4}, [](config::RunConfig& config) {
    config.parallel.tp = 4;
    config.parallel.sequence_parallel = false;
  });
  const Placement placement(small_cluster(), layout.mesh);
  Stack stack = stack_of(small_cluster().device, Kernels::kCurrent);
  stack.tensor_exposed = 0.25;
  const EstimateOptions options{};
  const LayerSeconds seconds = layer_seconds(layout, 1, 0, placement, stack, options);
  const GroupShape shape = shape_of(placement, layout.mesh, mesh::Axis::kTp, 0);
  CollectiveTime sum = collective_time(small_cluster(), shape, program::Collective::kAllReduce, 2.0 * 64 * 48);
  sum.transfer /= stack.network_share;
  EXPECT_NEAR(seconds.forward.tensor, 0.25 * 2 * sum.seconds(), 1e-15);
  EXPECT_NEAR(seconds.input.tensor, 0.25 * 2 * sum.seconds(), 1e-15);
  EXPECT_EQ(seconds.weight.tensor, 0);
  EXPECT_EQ(seconds.restore.tensor, 0);
}

TEST(LayerSeconds, PartsOfADividedLayerAddUpToIt) {
  const program::Layout layout = small_layout({.preset = "mixtral-test", .ranks = 4}, [](config::RunConfig& config) {
    config.parallel.ep = 4;
    config.parallel.overlap_experts = true;
  });
  const Placement placement(small_cluster(), layout.mesh);
  Stack stack = stack_of(small_cluster().device, Kernels::kCurrent);
  stack.expert_exposed = 1;
  const EstimateOptions options{};
  RankLayers layers(layout, placement, stack, options, 0);
  for (const auto& [kind, there, back] : {std::tuple(ActionKind::kForward, ActionKind::kDispatchForward, ActionKind::kCombineForward),
                                         std::tuple(ActionKind::kBackward, ActionKind::kCombineBackward, ActionKind::kDispatchBackward)}) {
    const double whole = layers.of({.kind = kind, .layer = 1}).sum();
    double parts = layers.exchange({.kind = there, .layer = 1}) + layers.exchange({.kind = back, .layer = 1});
    for (int part = 0; part < program::kParts; ++part) parts += layers.of({.kind = kind, .layer = 1, .part = part}).sum();
    EXPECT_NEAR(parts, whole, 1e-12) << program::action_name(kind);
  }
}

}  // namespace
}  // namespace lockstep::plan
