// Attention of further families as data: rows and how tp cuts them, calls, bytes, and what contradicts itself.
#include "lockstep/arch/attention_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelConfig model_of(Family family) {
  return {.family = family, .layers = 2, .hidden = 24, .heads = 8, .kv_heads = 2, .head_size = 6, .ffn = 40, .vocab_size = 53, .max_seq_len = 16};
}

ParamSpec row(const ModelConfig& model, const std::string& name, const TensorShard& shard = {}) {
  for (const ParamSpec& spec : param_table(model, shard))
    if (spec.name == name) return spec;
  ADD_FAILURE() << "no row " << name;
  return {};
}

TEST(AttentionKind, NormsOverAllHeadsAreCutAsHeadsAre) {
  const ModelConfig model = model_of(Family::kOlmo2);
  const TensorShard shard{.size = 4, .rank = 3};
  const ParamSpec q = row(model, "blocks.0.attention.q_norm.weight", shard), k = row(model, "blocks.0.attention.k_norm.weight", shard);
  EXPECT_THAT(q.shape, ElementsAre(48));
  EXPECT_THAT(q.local_shape, ElementsAre(12));
  EXPECT_THAT(q.local_offset, ElementsAre(36));
  EXPECT_FALSE(q.partial);
  EXPECT_THAT(k.shape, ElementsAre(12));
  EXPECT_THAT(k.local_shape, ElementsAre(6)) << "a key head that two ranks have";
  EXPECT_THAT(k.local_offset, ElementsAre(6));
  EXPECT_TRUE(k.partial);
  EXPECT_EQ(q.init, Init::kOnes);
}

TEST(AttentionKind, NormsOfHeadsThatAddOneBeginAtZero) {
  const ParamSpec q = row(model_of(Family::kGemma3), "blocks.1.attention.q_norm.weight", {.size = 2});
  EXPECT_THAT(q.local_shape, ElementsAre(6));
  EXPECT_TRUE(q.per_head && q.partial);
  EXPECT_EQ(q.init, Init::kZeros);
}

TEST(AttentionKind, SinksAreCutByHeads) {
  ModelConfig model = model_of(Family::kLlama);
  model.attention_sinks = true;
  const ParamSpec sinks = row(model, "blocks.0.attention.sinks.weight", {.size = 4, .rank = 1});
  EXPECT_THAT(sinks.shape, ElementsAre(8));
  EXPECT_THAT(sinks.local_shape, ElementsAre(2));
  EXPECT_THAT(sinks.local_offset, ElementsAre(2));
  EXPECT_FALSE(sinks.weight_decay || sinks.partial);
  EXPECT_EQ(sinks.init, Init::kNormal);
  EXPECT_NE(sinks.of, config::ParameterClass::kMatrix) << "no whole matrix";
}

// Two numbers a token, in full recomputation once more and in selective not.
TEST(AttentionKind, RanksSumSquaresOfRows) {
  const CostInput input{.batch = 3, .seq_len = 7, .element_size = 2, .tensor = {.size = 2, .sequence_parallel = true}};
  const ModelConfig model = model_of(Family::kOlmo2);
  const LayerDescription block = describe_layer(model, layer_spec(model, 1), input);
  const auto phases_of = [&](CallPhase phase) {
    PhaseSet phases;
    for (const Step& step : block.steps) {
      if (step.what != Step::What::kStart) continue;
      const LayerCall& call = block.calls[static_cast<size_t>(step.index)];
      if (call.part != "attention.qk_norm" || call.phase != phase) continue;
      EXPECT_EQ(call.collective, Collective::kAllReduce);
      EXPECT_EQ(call.numel, 2 * 3 * 7);
      EXPECT_EQ(call.element_size, 4);
      phases = phases | step.phases;
    }
    return phases.bits;
  };
  EXPECT_EQ(phases_of(CallPhase::kForward), kForwards.bits);
  EXPECT_EQ(phases_of(CallPhase::kBackward), kInputs.bits);
  const LayerDescription alone = describe_layer(model, layer_spec(model, 1), {.batch = 3, .seq_len = 7});
  EXPECT_THAT(alone.calls, IsEmpty());
}

// A window of its own keeps spans, and its products see fewer keys.
TEST(AttentionKind, AWindowIsThatOfTheBranch) {
  ModelConfig model = model_of(Family::kLlama);
  model.blocks = {usual_block(), usual_block()};
  model.blocks[1][0].window = 2;
  const CostInput input{.batch = 1, .seq_len = 8};
  const auto keys = [&](int layer) {
    const LayerDescription block = describe_layer(model, layer_spec(model, layer), input);
    return std::ranges::find(block.products, "scores", &Product::name)->n;
  };
  EXPECT_EQ(keys(1), (8 + 1) / 2);
  EXPECT_EQ(keys(2), (1 + 7 * 2) / 8) << "the first token sees itself alone";
}

TEST(AttentionKind, ProblemsOfBranchesAreTold) {
  const auto problems = [](ModelConfig model, const auto& change) {
    model.blocks = {usual_block()};
    change(model.blocks[0]);
    return join(block_problems(model), "\n");
  };
  const ModelConfig llama = model_of(Family::kLlama);
  EXPECT_EQ(problems(llama, [](BlockSpec&) {}), "");
  EXPECT_EQ(problems(llama, [](BlockSpec& block) { block[0].rotation = Rotation::kNone; }), "");
  EXPECT_THAT(problems(llama, [](BlockSpec& block) { block[0].rotation = Rotation::kLocal; }), HasSubstr("rope_local_theta is 0"));
  EXPECT_THAT(problems(llama, [](BlockSpec& block) { block[0].window = -1; }), HasSubstr("a window of -1 tokens"));
  EXPECT_THAT(problems(llama, [](BlockSpec& block) { block[0].kind = kStateSpace; }), HasSubstr("no sizes of one"));
  EXPECT_THAT(problems(llama, [](BlockSpec& block) { block[1].kind = kExperts; }), HasSubstr("the model has none"));
  EXPECT_THAT(problems(model_of(Family::kGpt2), [](BlockSpec& block) { block[0].rotation = Rotation::kNone; }), HasSubstr("learned positions"));
}

}  // namespace
}  // namespace lockstep::arch
