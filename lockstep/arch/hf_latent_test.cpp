// deepseek_v3: config.json there and back, YaRN in both spellings, tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/hf_names.h"
#include "lockstep/arch/params.h"
#include "lockstep/arch/test_hf_config.h"
#include "lockstep/base/error.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::model_of;
using testing::read;
using testing::refusal;
using testing::unwritable;
using testing::with;
using testing::without;

// As published, but for quantization_config.
Json deepseek() {
  return Json::parse(R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "use_cache": true,
    "v_head_dim": 128, "vocab_size": 129280})");
}

// Small enough to make all of its tensors.
ModelConfig small() {
  Json config = deepseek();
  const std::vector<std::pair<const char*, int>> sizes = {
      {"num_hidden_layers", 3}, {"hidden_size", 24},      {"intermediate_size", 40}, {"n_routed_experts", 4}, {"num_attention_heads", 4},
      {"num_key_value_heads", 4}, {"num_experts_per_tok", 2}, {"n_group", 2},           {"topk_group", 1},       {"first_k_dense_replace", 1}};
  for (const auto& [key, value] : sizes) config[key] = value;
  return model_of(config);
}

TEST(HfLatent, ThePublishedModel) {
  const HfConfig config = read(deepseek());
  const ModelConfig& model = config.model;
  EXPECT_EQ(model.latent, (LatentSizes{.q_rank = 1536, .kv_rank = 512, .nope = 128, .rope = 64, .value = 128}));
  EXPECT_EQ(model.head_size, 192);
  EXPECT_EQ(model.experts, (ExpertSizes{.count = 256, .per_token = 8, .ffn = 2048, .shared = 1, .router = config::Router::kSigmoid,
                                        .groups = 8, .top_groups = 4, .routed_scale = 2.5, .router_bias = true,
                                        .dense_layers = {0, 1, 2}}));
  EXPECT_EQ(model.rope_scaling, (RopeScaling{.kind = RopeScaling::Kind::kYarn, .factor = 40, .original_max_position_embeddings = 4096,
                                             .mscale = 1, .mscale_all_dim = 1}));
  EXPECT_EQ(num_parameters(model), 671026419200);
  EXPECT_THAT(config.notes, ElementsAre(HasSubstr("num_nextn_predict_layers = 1")));
}

TEST(HfLatent, BothSpellingsOfYarn) {
  Json newer = without(deepseek(), "rope_scaling");
  newer["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 40.0}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}, {"rope_theta", 10000.0},
                              {"original_max_position_embeddings", 4096}};
  EXPECT_EQ(model_of(newer), model_of(deepseek()));
  newer["rope_parameters"]["truncate"] = false;
  const ModelConfig uncut = model_of(newer);
  EXPECT_FALSE(uncut.rope_scaling.truncate);
  EXPECT_EQ(model_of(hf_config_json(uncut)), uncut);
  newer["rope_parameters"] = {{"rope_type", "yarn"}, {"beta_fast", 1}, {"beta_slow", 1}, {"factor", 2}};
  EXPECT_THAT(refusal(newer).what, HasSubstr("beta_fast = 1 is not above beta_slow = 1"));
}

TEST(HfLatent, WhatIsNotBuiltIsRefused) {
  const std::vector<std::tuple<const char*, Json, const char*>> cases = {{"attention_bias", true, "attention_bias = true"},
                                                                         {"q_lora_rank", nullptr, "no q_lora_rank"},
                                                                         {"norm_topk_prob", false, "norm_topk_prob = false"},
                                                                         {"moe_layer_freq", 2, "moe_layer_freq = 2"},
                                                                         {"scoring_func", "softmax", "scoring_func"},
                                                                         {"topk_method", "greedy", "topk_method"}};
  for (const auto& [key, value, text] : cases) {
    const Message message = refusal(with(deepseek(), key, value));
    EXPECT_EQ(message.code, "LS1118") << key;
    EXPECT_THAT(message.what, HasSubstr(text));
  }
  EXPECT_THAT(refusal(with(deepseek(), "num_key_value_heads", 64)).what, HasSubstr("num_key_value_heads(64) != num_attention_heads(128)"));
  EXPECT_THAT(refusal(with(deepseek(), "first_k_dense_replace", 61)).what, HasSubstr("leaves no layer with experts"));
  EXPECT_THAT(refusal(with(deepseek(), "qk_rope_head_dim", 63)).what, HasSubstr("is odd"));
  EXPECT_THAT(refusal(without(deepseek(), "kv_lora_rank")).what, HasSubstr("kv_lora_rank is missing"));
}

TEST(HfLatent, WrittenBack) {
  for (const Json& config : {deepseek(), with(deepseek(), "rope_interleave", false), with(deepseek(), "rope_scaling", nullptr)}) {
    const ModelConfig model = model_of(config);
    EXPECT_EQ(hf_config_json(model, &config), with(config, "num_nextn_predict_layers", 0)) << "no further layer is exported";
    EXPECT_EQ(model_of(hf_config_json(model)), model) << hf_config_json(model).dump(1);
  }
  const Json silent = without(deepseek(), "num_nextn_predict_layers");
  EXPECT_EQ(hf_config_json(model_of(silent), &silent), with(silent, "num_nextn_predict_layers", 0)) << "a missing key means one";
}

TEST(HfLatent, WhatTransformersCannotBeIsRefusedByName) {
  const auto changed = [](const auto& change) {
    ModelConfig model = small();
    change(model);
    return unwritable(model);
  };
  EXPECT_THAT(changed([](ModelConfig& m) { m.experts.router = config::Router::kSoftmax; }), HasSubstr("the router softmax"));
  EXPECT_THAT(changed([](ModelConfig& m) { m.experts.shared = 0; }), HasSubstr("no shared expert"));
  EXPECT_THAT(changed([](ModelConfig& m) { m.experts.dense_layers = {1}; }), HasSubstr("that are not the first"));
  EXPECT_THAT(changed([](ModelConfig& m) { m.latent = {}, m.head_size = 8; }), HasSubstr("no latent attention"));
}

TEST(HfLatent, EveryParameterIsAPartOfOneTensor) {
  const ModelConfig model = small();
  for (const HfForm form : {HfForm::kUsual, HfForm::kStacked}) {
    std::set<std::string> parts, ours, fp32;
    for (const HfTensor& tensor : hf_tensors(model, form)) {
      for (const HfPart& part : tensor.parts) EXPECT_TRUE(parts.insert(part.name).second) << part.name;
      if (tensor.fp32) fp32.insert(tensor.name);
    }
    for (const ParamSpec& spec : param_table(model)) ours.insert(spec.name);
    EXPECT_EQ(parts, ours);
    EXPECT_THAT(fp32, ElementsAre("model.layers.1.mlp.gate.e_score_correction_bias", "model.layers.2.mlp.gate.e_score_correction_bias"));
  }
  std::set<std::string> names;
  for (const HfTensor& tensor : hf_tensors(model)) names.insert(tensor.name);
  for (const char* name : {"model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.gate.weight",
                           "model.layers.1.mlp.shared_experts.down_proj.weight", "model.layers.2.mlp.experts.3.up_proj.weight",
                           "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "model.layers.2.self_attn.q_a_layernorm.weight"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(HfLatent, LayersBehindTheLastAreNotTaken) {
  const ModelConfig model = small();
  EXPECT_TRUE(is_further_hf_layer(model, 1, "model.layers.3.embed_tokens.weight"));
  EXPECT_TRUE(is_further_hf_layer(model, 1, "model.layers.3.mlp.experts.0.up_proj.weight"));
  EXPECT_TRUE(is_further_hf_layer(model, 2, "model.layers.4.mlp.gate.weight"));
  for (const char* name : {"model.layers.2.mlp.gate.weight", "model.layers.4.mlp.gate.weight", "model.norm.weight", "model.layers.weight",
                           "lm_head.weight"})
    EXPECT_FALSE(is_further_hf_layer(model, 1, name)) << name;
  EXPECT_FALSE(is_further_hf_layer(model, 0, "model.layers.3.embed_tokens.weight"));
}

TEST(HfLatent, HowManyLayersAreBehindTheLast) {
  EXPECT_EQ(read(deepseek()).further_layers, 1);
  EXPECT_EQ(read(with(deepseek(), "num_nextn_predict_layers", 3)).further_layers, 3);
  EXPECT_EQ(read(with(deepseek(), "num_nextn_predict_layers", 0)).further_layers, 0);
  const HfConfig silent = read(without(deepseek(), "num_nextn_predict_layers"));
  EXPECT_EQ(silent.further_layers, 1);
  EXPECT_THAT(silent.notes, ::testing::IsEmpty());
}

}  // namespace
}  // namespace lockstep::arch
