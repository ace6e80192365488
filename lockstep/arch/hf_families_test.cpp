// Families with windows of some layers, state spaces, norms elsewhere: config.json there and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <tuple>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/layer_description.h"
#include "lockstep/arch/params.h"
#include "lockstep/arch/test_hf_config.h"
#include "lockstep/arch/test_hf_families.h"
#include "support/folders.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace testing;  // NOLINT: of config.json

// Of a layer: M a state space, H with attention beside it, - an MLP alone; of attention n where nothing turns, l with a window and the other rotation, S with a
// window, else A.
char letter(const ModelConfig& model, const BlockSpec& block) {
  const Branch& first = block.front();
  if (first.kind == kStateSpace) return block.size() > 1 && block[1].beside ? 'H' : 'M';
  if (first.kind == "mlp") return '-';
  if (first.rotation == Rotation::kNone) return 'n';
  if (model.window_of(first) == 0) return 'A';
  return first.rotation == Rotation::kLocal ? 'l' : 'S';
}
std::string layers(const ModelConfig& model) {
  std::string text;
  for (int i = 1; i <= model.layers; ++i) text += letter(model, block_branches(model, i));
  return text;
}

TEST(HfFamilies, TheirNumbersOfParameters) {
  const std::vector<std::pair<Json, int64_t>> cases = {{pythia(), 162'322'944},  {phi3(), 3'821'079'552}, {olmo2(), 7'298'617'344},
                                                       {smollm3(), 3'075'098'624}, {gemma3(), 999'885'952}, {mamba2(), 128'989'632},
                                                       {gpt_oss(), 20'914'757'184}, {falcon_h1(), 521'411'104}};
  for (const auto& [config, number] : cases) EXPECT_EQ(num_parameters(model_of(config)), number) << config["model_type"];
}

TEST(HfFamilies, GptNeox) {
  const ModelConfig model = model_of(pythia());
  EXPECT_EQ(model.rotary_size, 16);
  EXPECT_EQ(model.activation, Activation::kGelu);
  EXPECT_TRUE(model.qkv_bias && model.out_bias && model.mlp_bias);
  const BlockSpec block = block_branches(model, 5);
  EXPECT_TRUE(block[1].beside && block[1].norm_before);
  EXPECT_THAT(model_of(with(pythia(), "use_parallel_residual", false)).blocks, IsEmpty());
  EXPECT_EQ(model_of(with(pythia(), "hidden_act", "gelu_fast")).activation, Activation::kGeluTanh);
  EXPECT_EQ(model_of(with(pythia(), "rotary_pct", 1.0)).rotary_size, 0);
  EXPECT_THAT(refusal(with(pythia(), "rotary_pct", 0.02)).what, HasSubstr("x head size(64) = 1"));
  const Json newer = with(without(without(pythia(), "rotary_pct"), "rotary_emb_base"), "rope_parameters",
                          {{"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.25}});
  EXPECT_EQ(model_of(newer), model);
}

TEST(HfFamilies, NormsBehindAndFourNorms) {
  const BlockSpec behind = block_branches(model_of(olmo2()), 1), both = block_branches(model_of(gemma3()), 1);
  for (size_t i : {0, 1}) {
    EXPECT_TRUE(!behind[i].norm_before && behind[i].norm_behind);
    EXPECT_TRUE(both[i].norm_before && both[i].norm_behind);
  }
}

TEST(HfFamilies, WindowsAndRotationOfEachLayer) {
  EXPECT_EQ(model_of(phi3()).sliding_window, 2047);
  EXPECT_THAT(model_of(phi3()).blocks, IsEmpty());
  EXPECT_EQ(layers(model_of(with(gemma3(), "num_hidden_layers", 8))), "lllllAll");
  EXPECT_EQ(layers(model_of(olmo3())).substr(0, 8), "lllAlllA") << "only full attention is stretched";
  EXPECT_EQ(layers(model_of(with(olmo3(), "rope_scaling", nullptr))).substr(0, 8), "SSSASSSA");
  EXPECT_EQ(layers(model_of(smollm3())).substr(0, 8), "AAAnAAAn");
  EXPECT_EQ(layers(model_of(gpt_oss())).substr(0, 4), "SASA");
  EXPECT_EQ(layers(model_of(without(gpt_oss(), "layer_types"))), layers(model_of(gpt_oss())));
  EXPECT_EQ(layers(model_of(without(olmo3(), "layer_types"))), layers(model_of(olmo3())));
  const Json sliding = with(with(without(smollm3(), "layer_types"), "use_sliding_window", true), "sliding_window", 64);
  EXPECT_EQ(model_of(sliding).window_of(block_branches(model_of(sliding), 4)[0]), 64) << "where nothing turns";
  EXPECT_EQ(model_of(sliding).window_of(block_branches(model_of(sliding), 1)[0]), 0);
  EXPECT_EQ(model_of(gpt_oss()).blocks.size(), 2);
  EXPECT_THAT(refusal(with(gpt_oss(), "sliding_window", nullptr)).what, HasSubstr("sliding_window is missing"));
}

TEST(HfFamilies, RotaryParametersByKindOfLayer) {
  const ModelConfig gemma = model_of(gemma3()), olmo = model_of(olmo3());
  EXPECT_EQ(gemma.rope_theta, 1e6);
  EXPECT_EQ(gemma.rope_local_theta, 1e4);
  EXPECT_EQ(olmo.rope_local_theta, 5e5);
  EXPECT_EQ(olmo.rope_scaling.factor, 8);
  const Json kinds = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  const Json newer = with(without(without(without(gemma3(), "rope_theta"), "rope_local_base_freq"), "rope_scaling"), "rope_parameters", kinds);
  EXPECT_EQ(model_of(newer), model_of(with(gemma3(), "rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}})));
  Json stretched = newer;
  stretched["rope_parameters"]["sliding_attention"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_THAT(refusal(stretched).what, HasSubstr("rope_parameters.sliding_attention.rope_type: layers with a window turn without scaling"));
  EXPECT_THAT(refusal(with(newer, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}})).what, HasSubstr("not by kind of layer"));
  EXPECT_THAT(refusal(with(olmo2(), "rope_parameters", kinds)).what, HasSubstr("rope_parameters by kind of layer"));
}

TEST(HfFamilies, Gemma3ScalesEmbeddingsAndScores) {
  const ModelConfig model = model_of(gemma3());
  EXPECT_EQ(model.embedding_scale, std::sqrt(1152.0));
  EXPECT_EQ(model.attention_scale, 0) << "256 is the head size";
  EXPECT_EQ(model_of(with(gemma3(), "query_pre_attn_scalar", 168)).attention_scale, 1 / std::sqrt(168.0));
  EXPECT_EQ(model.activation, Activation::kGeGlu);
  EXPECT_TRUE(model.tied);
}

TEST(HfFamilies, StateSpaces) {
  const StateSpaceSizes small{.heads = 24, .head_size = 64, .groups = 1, .state = 128};
  EXPECT_EQ(model_of(mamba2()).state_space, small);
  EXPECT_EQ(layers(model_of(mamba2())), std::string(24, 'M'));
  EXPECT_EQ(block_branches(model_of(mamba2()), 1).size(), 1);
  EXPECT_THAT(read(mamba2()).notes, ElementsAre(HasSubstr("residual_in_fp32 = true")));
  const StateSpaceSizes limited = model_of(with(mamba2(), "time_step_limit", {0.01, 2.0})).state_space;
  EXPECT_EQ(std::pair(limited.step_least, limited.step_most), std::pair(0.01, 2.0));
  EXPECT_THAT(refusal(with(mamba2(), "time_step_limit", {1.0, 0.5})).what, HasSubstr("0.5 is not above 1"));
  EXPECT_THAT(refusal(with(mamba2(), "num_heads", 23)).what, HasSubstr("num_heads(23) x head_dim(64) != expand(2) x hidden_size(768)"));

  const ModelConfig hybrid = model_of(bamba());
  EXPECT_EQ(layers(hybrid), "MMMMMMMMMAMMMMMMMMAMMMMMMMMAMMMM");
  EXPECT_EQ(hybrid.rotary_size, 64);
  EXPECT_EQ(model_of(with(bamba(), "mamba_d_head", "auto")), hybrid);
  EXPECT_EQ(block_branches(hybrid, 1)[1].kind, "mlp");

  const ModelConfig nemotron = model_of(nemotron_h());
  EXPECT_EQ(layers(nemotron), "M-M-Mn-M-");
  EXPECT_EQ(nemotron.state_space.norm_groups, 8);
  EXPECT_EQ(nemotron.state_space.step_least, 0.001);
  EXPECT_GT(nemotron.state_space.step_most, 1e38) << "no limit";
  EXPECT_EQ(nemotron.activation, Activation::kRelu2);
  Json kinds = without(without(nemotron_h(), "hybrid_override_pattern"), "num_hidden_layers");
  kinds["layers_block_type"] = {"mamba", "mlp", "linear_attention", "mlp", "mamba", "attention", "mlp", "linear_attention", "mlp"};
  EXPECT_EQ(model_of(kinds), nemotron);
}

TEST(HfFamilies, FalconH1) {
  const ModelConfig model = model_of(falcon_h1());
  EXPECT_EQ(model.state_space, (StateSpaceSizes{.heads = 24, .head_size = 64, .groups = 1, .state = 128, .chunk = 128, .norm_groups = 0}));
  EXPECT_EQ(layers(model), std::string(36, 'H'));
  const BlockSpec block = block_branches(model, 1);
  ASSERT_EQ(block.size(), 3);
  EXPECT_TRUE(block[1].shares_input());
  EXPECT_FALSE(block[2].beside);
  EXPECT_EQ(model.embedding_scale, 5.656854249492381);
  EXPECT_EQ(model.multipliers, (Multipliers{.key = 0.390625, .attention_out = 0.9375, .state_in = 1.25, .state_out = 0.23570226039551587,
                                            .z = 0.3535533905932738, .x = 0.25, .b = 0.3535533905932738, .c = 0.5, .dt = 0.3535533905932738,
                                            .gate = 0.8838834764831844, .down = 0.5859375, .logits = 0.0390625}));
  EXPECT_EQ(model_of(with(falcon_h1(), "mamba_d_head", "auto")), model);
  EXPECT_EQ(model_of(with(falcon_h1(), "mamba_rms_norm", true)).state_space.norm_groups, 1);
  EXPECT_THAT(refusal(with(falcon_h1(), "mamba_d_ssm", 1024)).what, HasSubstr("mamba_n_heads(24) x mamba_d_head(64) != mamba_d_ssm(1024)"));
  EXPECT_THAT(refusal(with(falcon_h1(), "mlp_multipliers", {1.0})).what, HasSubstr("a list of 2 numbers above 0 is expected"));
  EXPECT_THAT(refusal(with(falcon_h1(), "mlp_bias", true)).what, HasSubstr("multipliers of an MLP that has biases"));
  EXPECT_THAT(refusal(with(falcon_h1(), "attention_bias", true)).what, HasSubstr("multipliers of attention beside its biases"));
}

TEST(HfFamilies, GptOss) {
  const ModelConfig model = model_of(gpt_oss());
  EXPECT_EQ(model.experts, (ExpertSizes{.count = 32, .per_token = 4, .ffn = 2880, .router = config::Router::kSoftmaxAfterTopk,
                                        .logit_bias = true, .biases = true, .clamp = 7}));
  EXPECT_TRUE(model.attention_sinks && model.qkv_bias && model.out_bias);
  EXPECT_FALSE(model.rope_scaling.truncate);
  EXPECT_EQ(model_of(without(without(gpt_oss(), "rope_scaling"), "rope_theta")), model) << "what its class takes";
}

TEST(HfFamilies, WhatIsNotBuiltIsRefusedByName) {
  const std::vector<std::tuple<Json, const char*, Json, const char*>> cases = {
      {phi3(), "rope_scaling", {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0}}}, "rope_type = \"longrope\": of default"},
      {phi3(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}, "\"linear\": of default"},
      {olmo2(), "partial_rotary_factor", 0.5, "partial_rotary_factor = 0.5"},
      {gemma3(), "attn_logit_softcapping", 50.0, "attn_logit_softcapping = 50.0"},
      {gemma3(), "final_logit_softcapping", 30.0, "final_logit_softcapping = 30.0"},
      {gemma3(), "use_bidirectional_attention", true, "use_bidirectional_attention"},
      {gemma3(), "model_type", "gemma3", "model_type = \"gemma3\""},
      {gemma3(), "hidden_activation", "gelu", "hidden_activation = \"gelu\""},
      {mamba2(), "hidden_act", "gelu", "behind the convolution"},
      {bamba(), "hidden_act", "gelu_new", "hidden_act = \"gelu_new\": of silu"},
      {bamba(), "z_loss_coefficient", 1e-4, "z_loss_coefficient"},
      {nemotron_h(), "hybrid_override_pattern", "ME*-", "experts without a gate"},
      {nemotron_h(), "hybrid_override_pattern", "MX", "\"X\""},
      {nemotron_h(), "tie_word_embeddings", true, "tie_word_embeddings"},
      {nemotron_h(), "attention_bias", true, "attention_bias"},
      {gpt_oss(), "quantization_config", {{"quant_method", "mxfp4"}}, "quantization_config"},
      {gpt_oss(), "swiglu_alpha", 1.5, "swiglu_alpha = 1.5"},
      {with(falcon_h1(), "mamba_rms_norm", true), "mamba_norm_before_gate", true, "mamba_norm_before_gate = true"},
      {falcon_h1(), "projectors_bias", true, "projectors_bias beside mamba_proj_bias"},
      {pythia(), "model_type", "qwen3_next", "qwen3_next"}};
  for (const auto& [config, key, value, text] : cases) {
    const Message message = refusal(with(config, key, value));
    EXPECT_EQ(message.code, "LS1118") << key;
    EXPECT_THAT(message.what, HasSubstr(text));
  }
}

TEST(HfFamilies, WrittenBack) {
  for (const Json& config : new_families())
    for (const Json& one : {config, small(config)}) {
      const ModelConfig model = model_of(one);
      EXPECT_EQ(hf_config_json(model, &one), one);
      ModelConfig again = model_of(hf_config_json(model));
      if (model.family == Family::kMamba2) again.max_seq_len = model.max_seq_len;  // it has no key
      EXPECT_EQ(again, model) << hf_config_json(model).dump(1);
    }
  const Json gemma = gemma3();
  ModelConfig changed = model_of(gemma);
  changed.rope_theta = 5e6;
  const Json written = hf_config_json(changed, &gemma);
  EXPECT_EQ(model_of(written), changed);
  EXPECT_FALSE(written.contains("rope_scaling"));
  ModelConfig other = model_of(gpt_oss());
  other.rope_scaling = {};
  EXPECT_EQ(model_of(hf_config_json(other)), other) << "a missing key would be YaRN";
}

TEST(HfFamilies, WhatTransformersCannotBeIsRefusedByName) {
  const auto changed = [](const Json& config, const auto& change) {
    ModelConfig model = model_of(config);
    change(model);
    return unwritable(model);
  };
  EXPECT_THAT(changed(gemma3(), [](ModelConfig& m) { m.embedding_scale = 1; }), HasSubstr("embedding_scale"));
  EXPECT_THAT(changed(olmo2(), [](ModelConfig& m) { m.blocks = {}; }), HasSubstr("other blocks than the family's"));
  EXPECT_THAT(changed(olmo2(), [](ModelConfig& m) { m.sliding_window = 8; }), HasSubstr("sliding_window"));
  EXPECT_THAT(changed(gpt_oss(), [](ModelConfig& m) { m.blocks[0][0].window = 64, m.blocks[1][0].window = 128; }), HasSubstr("other blocks"));
  EXPECT_THAT(changed(gpt_oss(), [](ModelConfig& m) { m.attention_sinks = false; }), HasSubstr("attention sinks"));
  EXPECT_THAT(changed(gpt_oss(), [](ModelConfig& m) { m.experts.clamp = 0; }), HasSubstr("not clamped"));
  EXPECT_THAT(changed(mamba2(), [](ModelConfig& m) { m.state_space.norm_groups = 2; }), HasSubstr("norms over 2 groups beside 1 of B and C"));
  EXPECT_THAT(changed(mamba2(), [](ModelConfig& m) { m.state_space.heads = 18; }), HasSubstr("% hidden(768) = 384"));
  EXPECT_THAT(changed(bamba(), [](ModelConfig& m) { m.family = Family::kLlama; }), HasSubstr("state spaces"));
  EXPECT_THAT(changed(pythia(), [](ModelConfig& m) { m.kv_heads = 4; }), HasSubstr("kv_heads(4) is not heads(12)"));
}

TEST(HfFamilies, ABareInfinityIsRead) {
  const support::ScopedFolder folder("hf-infinity");
  std::string text = mamba2().dump();
  const std::string written = R"({"__float__":"Infinity"})";
  text.replace(text.find(written), written.size(), "Infinity");
  text.replace(text.find("\"mamba2\""), 8, R"("mamba2", "note": "\"Infinity, \\")");
  std::ofstream(folder.path() / "config.json") << text;
  EXPECT_EQ(load_hf_config(folder.path()).model, model_of(mamba2()));
  EXPECT_EQ(read_hf_json(folder.path() / "config.json"), with(mamba2(), "note", "\"Infinity, \\"));
}

}  // namespace
}  // namespace lockstep::arch
