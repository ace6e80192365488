// Models with latent attention: from a section, in words, as JSON; parameters, calls and FLOPs; what contradicts itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/arch/layer_description.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const config::ModelSection& section) {
  try {
    resolve_model(section, 512);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

ModelConfig test_model() { return resolve_model({.preset = "deepseek-test"}); }

TEST(LatentModels, CountsOfDeepseekV3) {
  const ModelConfig model = resolve_model({.preset = "deepseek-v3"});
  EXPECT_EQ(num_parameters(model), 671026419200);  // as published, without the layer that predicts a second token
  EXPECT_EQ(num_active_parameters(model), 37552297472);
  EXPECT_EQ(describe(model),
            "deepseek_v3 61 x 7168, 128 heads of latents 1536 and 512, ffn 18432 in 3 blocks, 256 experts of ffn 2048, 8 and 1 shared per "
            "token, vocab 129280, 671.03B parameters, 37.55B active");
  EXPECT_EQ(num_parameters(test_model()), 305928);
}

TEST(LatentModels, ThereAndBackAsJson) {
  ModelConfig model = test_model();
  EXPECT_EQ(parse_model_json(model_json(model), "state.json"), model);
  model.latent.interleaved = false;
  model.rope_scaling = {.kind = RopeScaling::Kind::kYarn, .factor = 40, .original_max_position_embeddings = 32, .beta_fast = 16,
                        .mscale = 1, .mscale_all_dim = 0.5};
  EXPECT_EQ(parse_model_json(model_json(model), "state.json"), model);
  Json json = model_json(model);
  json["latent"]["rope"] = 3;
  EXPECT_THROW(parse_model_json(json, "state.json"), CheckpointError);
}

TEST(LatentModels, TheFamilyHasItAndOthersMay) {
  config::ModelSection section{.preset = "llama-test", .kv_heads = 12, .q_lora_rank = 24, .kv_lora_rank = 16, .qk_nope_head_dim = 4,
                               .qk_rope_head_dim = 4, .v_head_dim = 6};
  const ModelConfig model = resolve_model(section);
  EXPECT_EQ(model.latent, (LatentSizes{.q_rank = 24, .kv_rank = 16, .nope = 4, .rope = 4, .value = 6}));
  EXPECT_EQ(model.head_size, 8);
  section.kv_heads = 4;
  EXPECT_THAT(refusal(section), HasSubstr("kv_heads(4) != heads(12)"));
  section.kv_heads.reset();
  section.qk_rope_head_dim = 3;
  EXPECT_THAT(refusal(section), HasSubstr("qk_rope_head_dim(3) is odd"));
  section.qk_rope_head_dim.reset();
  EXPECT_THAT(refusal(section), HasSubstr("latent attention needs model.qk_rope_head_dim as well"));
  section.kv_lora_rank.reset();
  EXPECT_THAT(refusal(section), HasSubstr("model.q_lora_rank is of latent attention, but model.kv_lora_rank is not given"));
  EXPECT_THAT(refusal({.preset = "gpt2-test", .q_lora_rank = 24, .kv_lora_rank = 16, .qk_nope_head_dim = 4, .qk_rope_head_dim = 4,
                       .v_head_dim = 6}),
              HasSubstr("family gpt2 has neither"));
  EXPECT_THAT(refusal({.family = "deepseek_v3", .layers = 2, .hidden = 24, .heads = 2, .experts = 4}),
              HasSubstr("family deepseek_v3 has latent attention, but model.kv_lora_rank is not given"));
  EXPECT_THAT(refusal({.preset = "deepseek-test", .head_size = 8}), HasSubstr("head_size(8) is not qk_nope_head_dim(12) + qk_rope_head_dim(4)"));
}

TEST(LatentModels, TheRouterHasItsBiasWhateverTheBalance) {
  EXPECT_TRUE(test_model().experts.router_bias);
  EXPECT_TRUE(resolve_model({.preset = "deepseek-test"}, 0, {.balance = config::Balance::kNone}).experts.router_bias);
}

TEST(LatentModels, ParametersAndWhatIsCutOverTp) {
  const ModelConfig model = test_model();
  std::vector<std::string> rows;
  for (const ParamSpec& spec : param_table(model, {.size = 4, .rank = 1, .sequence_parallel = true}, {1})) {
    if (!spec.name.starts_with("blocks.0.attention.")) continue;
    rows.push_back(cat(spec.name.substr(19), " ", spec.local_shape[0], spec.local_shape.size() > 1 ? cat(" x ", spec.local_shape[1]) : "",
                       spec.partial ? " partial" : "", spec.fuse.empty() ? "" : " fused"));
  }
  EXPECT_THAT(rows, ElementsAre("q_a.weight 24 x 64 partial fused", "kv_a.weight 24 x 64 partial fused", "q_a_norm.weight 24 partial",
                                "kv_a_norm.weight 20 partial", "q_b.weight 32 x 24", "kv_b.weight 40 x 20", "out.weight 64 x 16"));
  // Matrices stay with the others where what is whole is a group of its own.
  for (const ParamSpec& spec : param_table(model, {.size = 4, .rank = 1, .sequence_parallel = true, .row_groups = true}, {1}))
    EXPECT_EQ(spec.group, spec.shape.size() == 1 ? ParameterGroup::kRows : ParameterGroup::kDense) << spec.name;
}

std::vector<std::string> calls_of(bool sequence_parallel) {
  const ModelConfig model = test_model();
  const LayerDescription block = describe_layer(
      model, layer_spec(model, 1), {.batch = 2, .seq_len = 8, .tensor = {.size = 2, .sequence_parallel = sequence_parallel}});
  std::vector<std::string> calls;
  for (const LayerCall& call : block.calls)
    if (call.part.starts_with("attention.")) calls.push_back(cat(call.part, " ", call.numel));
  return calls;
}

// Latents are sent, not the x that they are made of.
TEST(LatentModels, CallsOverTp) {
  EXPECT_THAT(calls_of(false), ElementsAre("attention.out 1024", "attention.k_rope 64", "attention.q_b 384", "attention.kv_b 320"));
  EXPECT_THAT(calls_of(true), ElementsAre("attention.k_rope 64", "attention.q_b 384", "attention.kv_b 320", "attention.out 1024",
                                          "attention.out 1024", "attention.k_rope 64", "attention.q_b 384", "attention.q_b 384",
                                          "attention.kv_b 320", "attention.kv_b 320"));
}

// By hand: 6 for every weight of a product, and the causal half of the scores.
TEST(LatentModels, Flops) {
  ModelConfig model = test_model();
  model.experts = {};
  const double attention = 24 * 64 + 24 * 64 + 128 * 24 + 160 * 20 + 64 * 64, pairs = 8 * 32 * 0.5 * (16 + 8), mlp = 3 * 64 * 96;
  EXPECT_EQ(model_flops_per_token(model, 32), 6 * (4 * (attention + pairs + mlp) + 64 * 512));
}

TEST(Yarn, FactorsOfScoresAndPositions) {
  RopeScaling scaling{.kind = RopeScaling::Kind::kYarn, .factor = 40, .original_max_position_embeddings = 4096};
  EXPECT_DOUBLE_EQ(rope_attention_factor(scaling), 0.1 * std::log(40) + 1);
  scaling.mscale = scaling.mscale_all_dim = 1;
  EXPECT_EQ(rope_attention_factor(scaling), 1);
  scaling.attention_factor = 1.5;
  EXPECT_EQ(rope_attention_factor(scaling), 1.5);
  EXPECT_EQ(rope_attention_factor({.kind = RopeScaling::Kind::kLinear, .factor = 4}), 1);
  ModelConfig model = test_model();
  EXPECT_EQ(latent_score_scale(model), 0.25);
  model.rope_scaling = scaling;
  EXPECT_DOUBLE_EQ(latent_score_scale(model), 0.25 * std::pow(0.1 * std::log(40) + 1, 2));
}

}  // namespace
}  // namespace lockstep::arch
