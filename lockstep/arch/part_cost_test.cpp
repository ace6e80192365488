// A block of experts in parts: together they do what the whole block does, and hold no more than it does at its peak.
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "lockstep/arch/cost.h"

namespace lockstep::arch {
namespace {

LayerCost cost_of(const ExpertShard& experts, Recompute recompute = Recompute::kNone, int64_t shared = 0) {
  config::ModelSection section{.preset = "mixtral-test"};
  section.shared_experts = shared;
  const ModelConfig model = resolve_model(section);
  return layer_cost(model, layer_spec(model, 1), {.batch = 2, .seq_len = 16, .tensor = {.experts = experts}, .recompute = recompute});
}

double sum(const std::array<double, 3>& flops) { return std::accumulate(flops.begin(), flops.end(), 0.0); }

TEST(PartCost, PartsMakeUpTheWhole) {
  for (const int64_t shared : {0, 1}) {
    const LayerCost cost = cost_of({.ep = 2}, Recompute::kNone, shared);
    EXPECT_DOUBLE_EQ(sum(cost.forward_parts.flops), cost.forward_flops);
    EXPECT_DOUBLE_EQ(sum(cost.backward_parts.flops), cost.backward_flops);
    EXPECT_DOUBLE_EQ(sum(cost.input_parts.flops), cost.input_flops());
    EXPECT_GT(cost.forward_parts.flops[1], cost.forward_parts.flops[2]) << "the experts, and their sums";
  }
}

TEST(PartCost, BetweenPartsNoMoreIsAliveThanAtThePeak) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    const LayerCost cost = cost_of({.ep = 2}, recompute);
    for (const int64_t bytes : cost.forward_parts.between) {
      EXPECT_GT(bytes, 0);
      EXPECT_LE(bytes, cost.kept + cost.output + cost.forward_workspace);
    }
    for (const int64_t bytes : cost.backward_parts.between) EXPECT_LE(bytes, 2 * cost.output + cost.backward_workspace);
    EXPECT_EQ(cost.input_parts.between, cost.backward_parts.between);
  }
}

TEST(PartCost, OfExpertsOnOneRankThereAreNone) {
  const LayerCost cost = cost_of({});
  EXPECT_EQ(sum(cost.forward_parts.flops), 0);
  EXPECT_EQ(cost.backward_parts.between, (std::array<int64_t, 2>{}));
}

}  // namespace
}  // namespace lockstep::arch
