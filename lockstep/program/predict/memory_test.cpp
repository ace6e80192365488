// The walk over a program's memory, by hand-made programs: every expected byte from a formula.
#include "lockstep/program/predict/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/arch/model_config.h"
#include "lockstep/base/check.h"
#include "lockstep/program/placement.h"

namespace lockstep::program {
namespace {

using K = ActionKind;
using C = MemoryCategory;

constexpr int64_t kGradient = 4;
constexpr int64_t kLoss = 4;  // of a microbatch, once the head has made it

// gpt2-test with one block: layers 0 (embedding), 1, 2 (head); every unit of its own, the head's weight tied or not.
struct Options {
  int zero = 0;
  int replicate = 1, shard = 1;
  bool tied = false;
  config::Precision precision = config::Precision::kFp32;
  std::vector<arch::Recompute> recompute{};
  Offload offload{};
};

Layout layout_for(const Options& options) {
  config::ModelSection section;
  section.preset = "gpt2-test";
  section.layers = 1;
  section.tied = options.tied;
  Layout layout;
  layout.model = arch::resolve_model(section);
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kDpReplicate] = options.replicate;
  degrees[mesh::Axis::kDpShard] = options.shard;
  layout.mesh = mesh::Mesh(degrees);
  layout.global_batch = 2 * options.replicate * options.shard;
  layout.micro_batch = 2;
  layout.seq_len = 16;
  layout.zero = options.zero;
  layout.precision = options.precision;
  layout.recompute = options.recompute;
  layout.offload = options.offload;
  return layout;
}

// The same list for every rank; a bucket per unit, in backward order.
Program program_of(const Layout& layout, const std::vector<Action>& actions) {
  Program program;
  program.lists = {actions};
  program.list_of.assign(static_cast<size_t>(layout.mesh.world_size()), 0);
  const arch::FlatLayout flat = layout.flat_layout(0);
  for (auto unit = flat.units.rbegin(); unit != flat.units.rend(); ++unit)
    program.buckets.push_back({.units = {unit->layer}, .begin = unit->begin, .end = unit->end});
  return program;
}

Action at_layer(K kind, int layer) { return {.kind = kind, .layer = layer, .microbatch = 0}; }
Action of_unit(K kind, int unit, Moved moved = Moved::kParameters) { return {.kind = kind, .unit = unit, .moved = moved}; }
Action of_bucket(K kind, int bucket) { return {.kind = kind, .bucket = bucket}; }

const std::vector<Action> kPlain = {at_layer(K::kForward, 0),  at_layer(K::kForward, 1),  at_layer(K::kForward, 2),
                                    at_layer(K::kBackward, 2), at_layer(K::kBackward, 1), at_layer(K::kBackward, 0),
                                    {.kind = K::kLoss},        {.kind = K::kNorm},        {.kind = K::kStep}};

std::vector<Action> with(std::vector<Action> actions, size_t at, const std::vector<Action>& more) {
  actions.insert(actions.begin() + static_cast<int64_t>(at), more.begin(), more.end());
  return actions;
}

struct Sizes {
  explicit Sizes(const Layout& layout) : flat(layout.flat_layout(0)), costs(layer_costs(layout, 0)) {
    tokens = 2 * layout.num_microbatches() * layout.micro_batch * layout.seq_len * 8;
  }
  int64_t unit(int layer) const { return flat.units.at(static_cast<size_t>(layer)).numel(); }
  arch::FlatLayout flat;
  std::vector<arch::LayerCost> costs;
  int64_t tokens;
};

int64_t value(const MemoryArray& bytes, C category) { return bytes[static_cast<size_t>(category)]; }

std::vector<int64_t> after_each(const MemoryTimeline& timeline, C category) {
  std::vector<int64_t> bytes;
  for (const MemoryPoint& point : timeline.points) bytes.push_back(value(point.after, category));
  return bytes;
}

TEST(MemoryWalk, ThePeakIsTheMostOfAllCategoriesAtOneTime) {
  const Layout layout = layout_for({});
  const Sizes s(layout);
  const Program program = program_of(layout, kPlain);
  const MemoryTimeline timeline = memory_timeline(layout, program, 0);
  const int64_t states = 16 * s.flat.numel;  // 4 values, 4 gradients, 8 moments
  int64_t kept = s.tokens;
  for (size_t layer = 0; layer < 3; ++layer) {
    kept += s.costs[layer].kept;
    EXPECT_EQ(value(timeline.points[layer].after, C::kActivations), kept + s.costs[layer].output);
    EXPECT_EQ(device_total(timeline.points[layer].within), states + kept + s.costs[layer].output + s.costs[layer].forward_workspace);
  }
  // B of the block: all that embedding and block kept, dy and dx, and its workspace.
  const int64_t at_block = s.tokens + kLoss + s.costs[0].kept + s.costs[1].kept + s.costs[1].output + s.costs[0].output;
  EXPECT_EQ(device_total(timeline.points[4].within), states + at_block + s.costs[1].backward_workspace);
  EXPECT_EQ(value(timeline.points[5].after, C::kActivations), s.tokens + kLoss);
  const MemoryBytes bytes = predict_memory(layout, program, 0);
  int64_t most = 0, workspace = 0;
  for (const MemoryPoint& point : timeline.points) most = std::max(most, device_total(point.within));
  for (const arch::LayerCost& cost : s.costs)
    workspace = std::max({workspace, cost.forward_workspace, cost.backward_workspace});
  EXPECT_EQ(bytes.peak, most);
  EXPECT_EQ(bytes[C::kBuffers], workspace);
  EXPECT_LE(bytes.peak, bytes.total() + s.costs[1].output);  // within B of the head its input and dx
}

// Three layers, three ranks: a third of everything, and a layer's parameters and gradients only while they are used.
TEST(MemoryWalk, ZeroThreeHoldsALayerOnlyWhileItIsUsed) {
  const Layout layout = layout_for({.zero = 3, .shard = 3});
  const Sizes s(layout);
  std::vector<Action> actions;
  for (int layer = 0; layer < 3; ++layer)
    for (const Action& action : {of_unit(K::kUnshard, layer), at_layer(K::kForward, layer), of_unit(K::kReshard, layer)})
      actions.push_back(action);
  for (int layer = 2; layer >= 0; --layer)
    for (const Action& action : {of_unit(K::kUnshard, layer), at_layer(K::kBackward, layer), of_unit(K::kReshard, layer),
                                 of_bucket(K::kReduceGrad, 2 - layer), of_bucket(K::kShardGrad, 2 - layer)})
      actions.push_back(action);
  const MemoryTimeline timeline = memory_timeline(layout, program_of(layout, actions), 0);
  const int64_t third = s.flat.numel / 3;
  const int64_t p = 4 * third, g = kGradient * third;
  const auto u = [&](int layer) { return 4 * s.unit(layer); };
  EXPECT_EQ(value(timeline.before, C::kOptimizer), 8 * third);
  EXPECT_THAT(after_each(timeline, C::kParameters),
              ::testing::ElementsAre(p + u(0), p + u(0), p, p + u(1), p + u(1), p, p + u(2), p + u(2), p,  //
                                     p + u(2), p + u(2), p, p, p, p + u(1), p + u(1), p, p, p,  //
                                     p + u(0), p + u(0), p, p, p));
  EXPECT_THAT(after_each(timeline, C::kGradients),
              ::testing::ElementsAre(g, g, g, g, g, g, g, g, g,  //
                                     g, g + u(2), g + u(2), g + u(2), g, g, g + u(1), g + u(1), g + u(1), g,  //
                                     g, g + u(0), g + u(0), g + u(0), g));
}

TEST(MemoryWalk, ATiedProjectionOpensTheEmbeddingsGradientInTheBackwardOfTheHead) {
  const Layout layout = layout_for({.zero = 2, .shard = 2, .tied = true});
  const Sizes s(layout);
  const MemoryTimeline timeline = memory_timeline(
      layout, program_of(layout, with(kPlain, 6, {of_bucket(K::kShardGrad, 0), of_bucket(K::kShardGrad, 1), of_bucket(K::kShardGrad, 2)})), 1);
  const int64_t kept = kGradient * s.flat.numel / 2;
  EXPECT_EQ(value(timeline.points[2].after, C::kGradients), kept);
  EXPECT_EQ(value(timeline.points[3].after, C::kGradients), kept + kGradient * (s.unit(0) + s.unit(2)));
  EXPECT_EQ(value(timeline.points[4].after, C::kGradients), kept + kGradient * s.flat.numel);
  EXPECT_EQ(value(timeline.points[8].after, C::kGradients), kept);
  EXPECT_EQ(value(timeline.before, C::kParameters), 4 * s.flat.numel);
}

TEST(MemoryWalk, StatesByStage) {
  struct Expected {
    int zero;
    int64_t parameters, gradients, fp32, bf16;  // twelfths of bytes a parameter, over 3 ranks
  };
  for (const Expected& e : {Expected{0, 12, 12, 24, 36}, {1, 12, 12, 8, 12}, {2, 12, 4, 8, 12}, {3, 4, 4, 8, 12}})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
      const bool bf16 = precision == config::Precision::kBf16, sharded = e.zero > 0;
      const Layout layout = layout_for({.zero = e.zero, .replicate = sharded ? 1 : 3, .shard = sharded ? 3 : 1, .precision = precision});
      const int64_t n = layout.flat_layout(0).numel;
      const MemoryTimeline timeline = memory_timeline(layout, program_of(layout, {}), 2);
      EXPECT_EQ(value(timeline.before, C::kParameters), e.parameters * (bf16 ? 2 : 4) * n / 12) << e.zero;
      EXPECT_EQ(value(timeline.before, C::kGradients), e.gradients * kGradient * n / 12) << e.zero;
      EXPECT_EQ(value(timeline.before, C::kOptimizer), (bf16 ? e.bf16 : e.fp32) * n / 3) << e.zero;
    }
}

TEST(MemoryWalk, RecomputationKeepsTheInputAloneUntilBackward) {
  const Layout layout = layout_for({.recompute = {arch::Recompute::kFull}});
  const Sizes s(layout);
  const MemoryTimeline timeline =
      memory_timeline(layout, program_of(layout, with(kPlain, 4, {at_layer(K::kRecompute, 1)})), 0);
  const int64_t border = value(timeline.points[3].after, C::kActivations);
  EXPECT_EQ(border, s.tokens + kLoss + s.costs[0].kept + s.costs[1].kept + s.costs[1].output);
  EXPECT_EQ(value(timeline.points[4].after, C::kActivations), border + s.costs[1].restored);
  EXPECT_EQ(value(timeline.points[4].within, C::kBuffers), s.costs[1].recompute_workspace);
  EXPECT_EQ(value(timeline.points[5].after, C::kActivations), s.tokens + kLoss + s.costs[0].kept + s.costs[0].output);
}

TEST(MemoryWalk, OffloadedStatesAreOnTheHost) {
  Offload offload{.optimizer = true, .parameters = true};
  Layout layout = layout_for({.offload = offload});
  const int64_t n = layout.flat_layout(0).numel;
  const Sizes s(layout);
  std::vector<Action> actions = {of_unit(K::kFetch, 0), of_unit(K::kFetch, 1), of_unit(K::kEvict, 0), of_unit(K::kEvict, 1)};
  MemoryTimeline timeline = memory_timeline(layout, program_of(layout, actions), 0);
  EXPECT_EQ(device_total(timeline.before), s.tokens);
  EXPECT_EQ(value(timeline.before, C::kHost), 16 * n);
  EXPECT_THAT(after_each(timeline, C::kParameters),
              ::testing::ElementsAre(4 * s.unit(0), 4 * (s.unit(0) + s.unit(1)), 4 * s.unit(1), 0));
  layout.precision = config::Precision::kBf16;
  EXPECT_EQ(value(memory_timeline(layout, program_of(layout, {}), 0).before, C::kHost), 18 * n);
  layout.offload.parameters = false;
  timeline = memory_timeline(layout, program_of(layout, actions), 0);  // they fill what is there
  EXPECT_EQ(value(timeline.before, C::kHost), 16 * n);
  EXPECT_THAT(after_each(timeline, C::kParameters), ::testing::Each(2 * n));
}

TEST(MemoryWalk, OffloadedShardsComeBeforeTheyAreGathered) {
  const Layout layout = layout_for({.zero = 3, .shard = 2, .offload = {.optimizer = true, .parameters = true}});
  const Sizes s(layout);
  const MemoryTimeline timeline = memory_timeline(
      layout, program_of(layout, {of_unit(K::kFetch, 1), of_unit(K::kUnshard, 1), of_unit(K::kReshard, 1), of_unit(K::kEvict, 1)}), 0);
  EXPECT_EQ(value(timeline.before, C::kHost), 8 * s.flat.numel);
  EXPECT_THAT(after_each(timeline, C::kParameters),
              ::testing::ElementsAre(2 * s.unit(1), 6 * s.unit(1), 2 * s.unit(1), 0));
}

TEST(MemoryWalk, OffloadedActivationsLeaveTheDevice) {
  const Layout layout = layout_for({.recompute = {arch::Recompute::kFull}, .offload = {.activations = true}});
  const Sizes s(layout);
  const auto moved = [](K kind) { return Action{.kind = kind, .layer = 1, .microbatch = 0, .moved = Moved::kActivation}; };
  std::vector<Action> actions = with(kPlain, 4, {moved(K::kFetch), at_layer(K::kRecompute, 1)});
  actions = with(actions, 2, {moved(K::kEvict)});
  const MemoryTimeline timeline = memory_timeline(layout, program_of(layout, actions), 0);
  const int64_t x = s.costs[1].kept;
  // F F EVICT F B FETCH RECOMPUTE ...: on the host until it is used, on the device until the copy is waited for.
  EXPECT_THAT(after_each(timeline, C::kHost), ::testing::ElementsAre(0, 0, x, x, x, x, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(value(timeline.points[2].after, C::kActivations), s.tokens + s.costs[0].kept + x + s.costs[1].output);
  EXPECT_EQ(value(timeline.points[5].after, C::kActivations), s.tokens + kLoss + s.costs[0].kept + x + s.costs[1].output);
  EXPECT_EQ(value(timeline.points[7].after, C::kActivations), s.tokens + kLoss + s.costs[0].kept + s.costs[0].output);
}

TEST(MemoryWalk, WhatIsOnDiskHasHostMemoryWhileItIsUpdated) {
  Layout layout = layout_for({.offload = {.optimizer = true, .disk = true}});
  const Sizes s(layout);
  // On disk everything but gradients, with two buffers of the largest unit: what the host must have at least.
  int64_t largest = 0;
  for (const arch::FlatUnit& unit : s.flat.units) largest = std::max(largest, unit.numel());
  layout.offload.host_limit = 4 * s.flat.numel + 2 * 12 * largest;
  const HostPlan plan = host_plan(layout, 0);
  ASSERT_FALSE(plan.disk_units.empty());
  const int unit = plan.disk_units.front();
  const MemoryTimeline timeline = memory_timeline(
      layout, program_of(layout, {of_unit(K::kFetch, unit, Moved::kOptimizer), of_unit(K::kEvict, unit, Moved::kOptimizer)}), 0);
  const int64_t there = plan.gradients + plan.states;
  EXPECT_EQ(value(timeline.before, C::kHost), there);
  EXPECT_THAT(after_each(timeline, C::kHost), ::testing::ElementsAre(there + 12 * s.unit(unit), there));
}

// Of matrices of blocks one slot of 4 bytes, of all else two; on the device and on the host.
TEST(MemoryWalk, OptimizerStateFollowsFromTheSlots) {
  Layout layout = layout_for({.precision = config::Precision::kBf16});
  layout.optimizer.kind = config::OptimizerKind::kMuon;
  const Sizes s(layout);
  int64_t slots = 0;
  for (const arch::ParamSpec& spec : layout.param_table(0))
    slots += spec.local_numel() * (spec.name.starts_with("blocks.") && spec.shape.size() == 2 ? 4 : 8);
  EXPECT_EQ(value(memory_timeline(layout, program_of(layout, kPlain), 0).before, C::kOptimizer), slots + 4 * s.flat.numel);
  layout.offload = {.optimizer = true, .parameters = true};
  EXPECT_EQ(host_plan(layout, 0).states, slots + (4 + 2) * s.flat.numel);
}

TEST(MemoryWalk, Bf16OnTheWireIsStagedUntilTheResultIsUsed) {
  Layout layout = layout_for({.zero = 1, .shard = 2});
  layout.reduce_precision = config::Precision::kBf16;
  const Sizes s(layout);
  const MemoryTimeline timeline = memory_timeline(
      layout, program_of(layout, with(kPlain, 6, {of_bucket(K::kReduceGrad, 0), of_bucket(K::kReduceGrad, 1)})), 0);
  const int64_t head = 4 * s.unit(2), block = 4 * s.unit(1);
  EXPECT_THAT(after_each(timeline, C::kBuffers), ::testing::ElementsAre(0, 0, 0, 0, 0, 0, head, head + block, head + block, 0, 0));
}

TEST(MemoryWalk, WhatIsLeftOverIsABrokenProgram) {
  const Layout layout = layout_for({.zero = 3, .shard = 2});
  EXPECT_THROW(memory_timeline(layout, program_of(layout, {at_layer(K::kForward, 0)}), 0), InternalError);
  EXPECT_THROW(memory_timeline(layout, program_of(layout, {of_unit(K::kUnshard, 0)}), 0), InternalError);
  EXPECT_THROW(memory_timeline(layout, program_of(layout, {of_unit(K::kUnshard, 0), of_unit(K::kUnshard, 0)}), 0), InternalError);
}

}  // namespace
}  // namespace lockstep::program
