// Families with experts: config.json there and back, tensors in both forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/hf_names.h"
#include "lockstep/arch/params.h"
#include "lockstep/arch/test_hf_config.h"
#include "lockstep/base/error.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::model_of;
using testing::read;
using testing::refusal;
using testing::unwritable;
using testing::with;
using testing::without;

// As published.
Json mixtral() {
  return Json::parse(R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 32000})");
}
Json qwen3_moe() {
  return Json::parse(R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})");
}

TEST(HfExperts, PublishedModels) {
  const ModelConfig eight = model_of(mixtral()), many = model_of(qwen3_moe());
  EXPECT_EQ(eight.family, Family::kMixtral);
  EXPECT_EQ(eight.experts, (ExpertSizes{.count = 8, .per_token = 2, .ffn = 14336, .router = config::Router::kSoftmaxAfterTopk}));
  EXPECT_EQ(eight.sliding_window, 0);
  EXPECT_EQ(eight.rope_theta, 1e6);
  EXPECT_EQ(num_parameters(eight), 46'702'792'704);
  EXPECT_EQ(many.family, Family::kQwen3Moe);
  EXPECT_EQ(many.experts, (ExpertSizes{.count = 128, .per_token = 8, .ffn = 768, .router = config::Router::kSoftmaxAfterTopk}));
  EXPECT_TRUE(many.qk_norm);
  EXPECT_EQ(many.ffn, 6144);
  EXPECT_EQ(num_parameters(many), 30'532'122'624);
}

TEST(HfExperts, MissingKeysMeanWhatTransformersTakes) {
  EXPECT_EQ(model_of(without(mixtral(), "sliding_window")).sliding_window, 0);
  EXPECT_EQ(model_of(with(mixtral(), "sliding_window", 4096)).sliding_window, 4096);
  EXPECT_EQ(model_of(with(mixtral(), "sliding_window", 4096)).max_seq_len, model_of(mixtral()).max_seq_len);
  EXPECT_EQ(model_of(without(mixtral(), "rope_theta")).rope_theta, 1e6);
  EXPECT_EQ(model_of(without(mixtral(), "rms_norm_eps")).norm_eps, 1e-5);
  EXPECT_EQ(model_of(without(qwen3_moe(), "norm_topk_prob")).experts.router, config::Router::kSoftmax);
  EXPECT_EQ(model_of(without(qwen3_moe(), "head_dim")).head_size, 64);
  EXPECT_EQ(model_of(without(qwen3_moe(), "num_key_value_heads")).kv_heads, 4);
  EXPECT_EQ(model_of(with(qwen3_moe(), "sliding_window", 1024)).sliding_window, 0);
  EXPECT_EQ(model_of(with(with(qwen3_moe(), "sliding_window", 1024), "use_sliding_window", true)).sliding_window, 1024);
  // As transformers 5 writes it.
  const Json newer = with(without(qwen3_moe(), "num_experts"), "num_local_experts", 128);
  EXPECT_EQ(model_of(newer), model_of(qwen3_moe()));
  EXPECT_THAT(refusal(with(newer, "num_experts", 64)).what, HasSubstr("num_experts and num_local_experts differ"));
}

TEST(HfExperts, WhichLayersAreDense) {
  Json config = with(qwen3_moe(), "num_hidden_layers", 6);
  EXPECT_THAT(model_of(config).experts.dense_layers, IsEmpty());
  EXPECT_THAT(model_of(with(config, "mlp_only_layers", nullptr)).experts.dense_layers, IsEmpty());
  EXPECT_THAT(model_of(with(config, "mlp_only_layers", {0, 4})).experts.dense_layers, ElementsAre(0, 4));
  config["decoder_sparse_step"] = 3;
  EXPECT_THAT(model_of(config).experts.dense_layers, ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(model_of(with(config, "mlp_only_layers", {5})).experts.dense_layers, ElementsAre(0, 1, 3, 4, 5));
  EXPECT_THAT(refusal(with(config, "mlp_only_layers", {2, 5})).what, HasSubstr("no layer with experts"));
  EXPECT_THAT(refusal(with(config, "mlp_only_layers", {6})).what, HasSubstr("mlp_only_layers = [6]: a list of numbers from 0 to 5"));
  ModelConfig changed = model_of(config);
  changed.experts.dense_layers = {0};
  const Json json = hf_config_json(changed, &config);
  EXPECT_EQ(json["decoder_sparse_step"], 1);
  EXPECT_EQ(model_of(json), changed);
}

TEST(HfExperts, WhatIsNotTakenIsSaidAndWhatIsNotBuiltIsRefused) {
  EXPECT_THAT(read(mixtral()).notes, ElementsAre(HasSubstr("router_aux_loss_coef = 0.02 is not taken")));
  EXPECT_THAT(read(with(mixtral(), "router_aux_loss_coef", 0)).notes, IsEmpty());
  const Message noise = refusal(with(mixtral(), "router_jitter_noise", 0.1));
  EXPECT_EQ(noise.code, "LS1118");
  EXPECT_THAT(noise.what, HasSubstr("router_jitter_noise = 0.1"));
  for (const char* key : {"num_local_experts", "num_experts_per_tok"}) {
    EXPECT_THAT(refusal(without(mixtral(), key)).what, HasSubstr(key));
    EXPECT_THAT(refusal(with(mixtral(), key, 0)).what, HasSubstr(key));
  }
  EXPECT_THAT(refusal(without(qwen3_moe(), "moe_intermediate_size")).what, HasSubstr("moe_intermediate_size is missing"));
  EXPECT_EQ(refusal(with(mixtral(), "num_experts_per_tok", 9)).code, "LS1117");
}

TEST(HfExperts, WrittenBack) {
  for (const Json& config : {mixtral(), qwen3_moe(), with(qwen3_moe(), "mlp_only_layers", {1, 3}), with(qwen3_moe(), "norm_topk_prob", false),
                             with(without(qwen3_moe(), "num_experts"), "num_local_experts", 128), with(mixtral(), "sliding_window", 100),
                             with(with(qwen3_moe(), "sliding_window", 100), "use_sliding_window", true)}) {
    const ModelConfig model = model_of(config);
    EXPECT_EQ(hf_config_json(model, &config), config);
    EXPECT_EQ(model_of(hf_config_json(model)), model) << hf_config_json(model).dump(1);
  }
}

TEST(HfExperts, WhatTransformersCannotBeIsRefusedByName) {
  const auto changed = [](const Json& config, const auto& change) {
    ModelConfig model = model_of(config);
    change(model);
    return unwritable(model);
  };
  EXPECT_THAT(changed(mixtral(), [](ModelConfig& m) { m.experts = {}; }), HasSubstr("no experts"));
  EXPECT_THAT(changed(mixtral(), [](ModelConfig& m) { m.family = Family::kLlama; }), HasSubstr("LlamaForCausalLM cannot be this model:\n  experts"));
  EXPECT_THAT(changed(mixtral(), [](ModelConfig& m) { m.experts.router = config::Router::kSoftmax; }), HasSubstr("the router softmax"));
  EXPECT_THAT(changed(qwen3_moe(), [](ModelConfig& m) { m.experts.router = config::Router::kSigmoid; }), HasSubstr("the router sigmoid"));
  EXPECT_THAT(changed(qwen3_moe(), [](ModelConfig& m) { m.experts.router_bias = true; }), HasSubstr("a bias of the router"));
  EXPECT_THAT(changed(mixtral(), [](ModelConfig& m) { m.experts.shared = 1; }), HasSubstr("shared experts"));
  EXPECT_THAT(changed(mixtral(), [](ModelConfig& m) { m.experts.routed_scale = 2.5; }), HasSubstr("routed_scale"));
  EXPECT_THAT(changed(mixtral(), [](ModelConfig& m) { m.experts.groups = 2; }), HasSubstr("groups of experts"));
  EXPECT_THAT(changed(mixtral(), [](ModelConfig& m) { m.experts.dense_layers = {0}; }), HasSubstr("layers without experts"));
}

ModelConfig small(Family family) {
  ModelConfig model{.family = family, .layers = 2, .hidden = 24, .heads = 4, .kv_heads = 2, .head_size = 8, .ffn = 40,
                    .vocab_size = 61, .max_seq_len = 16, .tied = false};
  model.experts = {.count = 12, .per_token = 2, .ffn = family == Family::kMixtral ? int64_t{40} : int64_t{20}};
  if (family == Family::kQwen3Moe) model.experts.dense_layers = {0};
  return model;
}

TEST(HfExperts, EveryParameterIsAPartOfOneTensorInBothForms) {
  for (const Family family : {Family::kMixtral, Family::kQwen3Moe})
    for (const HfForm form : {HfForm::kUsual, HfForm::kStacked}) {
      const ModelConfig model = small(family);
      std::set<std::string> parts, tensors, ours;
      for (const HfTensor& tensor : hf_tensors(model, form)) {
        EXPECT_TRUE(tensors.insert(tensor.name).second) << tensor.name;
        for (const HfPart& part : tensor.parts) EXPECT_TRUE(parts.insert(part.name).second) << part.name;
        EXPECT_EQ(is_stacked_hf_name(tensor.name), tensor.shape.size() == 3) << tensor.name;
      }
      for (const ParamSpec& spec : param_table(model)) ours.insert(spec.name);
      EXPECT_EQ(parts, ours);
    }
}

std::map<std::string, HfTensor> by_name(const ModelConfig& model, HfForm form) {
  std::map<std::string, HfTensor> tensors;
  for (const HfTensor& tensor : hf_tensors(model, form)) tensors[tensor.name] = tensor;
  return tensors;
}

TEST(HfExperts, NamesAndShapes) {
  const auto mixtral = by_name(small(Family::kMixtral), HfForm::kUsual), qwen = by_name(small(Family::kQwen3Moe), HfForm::kUsual);
  EXPECT_EQ(mixtral.size(), 2 * (4 + 2 + 1 + 3 * 12) + 3u);
  const HfTensor& down = mixtral.at("model.layers.1.block_sparse_moe.experts.11.w2.weight");
  EXPECT_THAT(down.shape, ElementsAre(24, 40));
  EXPECT_THAT(down.parts, ElementsAre(HfPart{"blocks.1.experts.11.down.weight", {24, 40}, 0}));
  EXPECT_EQ(mixtral.at("model.layers.0.block_sparse_moe.experts.3.w1.weight").parts[0].name, "blocks.0.experts.3.gate.weight");
  EXPECT_EQ(mixtral.at("model.layers.0.block_sparse_moe.experts.3.w3.weight").parts[0].name, "blocks.0.experts.3.up.weight");
  EXPECT_THAT(mixtral.at("model.layers.0.block_sparse_moe.gate.weight").shape, ElementsAre(12, 24));
  EXPECT_EQ(mixtral.at("model.layers.0.post_attention_layernorm.weight").parts[0].name, "blocks.0.experts_norm.weight");

  EXPECT_EQ(qwen.size(), (4 + 2 + 2 + 3) + (4 + 2 + 2 + 1 + 3 * 12) + 3u);
  EXPECT_THAT(qwen.at("model.layers.0.mlp.up_proj.weight").shape, ElementsAre(40, 24));
  EXPECT_EQ(qwen.at("model.layers.0.post_attention_layernorm.weight").parts[0].name, "blocks.0.mlp_norm.weight");
  EXPECT_THAT(qwen.at("model.layers.1.mlp.experts.10.gate_proj.weight").shape, ElementsAre(20, 24));
  EXPECT_EQ(qwen.at("model.layers.1.mlp.gate.weight").parts[0].name, "blocks.1.experts.router.weight");
  EXPECT_FALSE(qwen.contains("model.layers.0.mlp.gate.weight"));
}

TEST(HfExperts, StackedGateAboveUpForOneExpertAfterTheOther) {
  const auto tensors = by_name(small(Family::kMixtral), HfForm::kStacked);
  const HfTensor& joint = tensors.at("model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_THAT(joint.shape, ElementsAre(12, 80, 24));
  EXPECT_EQ(joint.parts[0], (HfPart{"blocks.0.experts.0.gate.weight", {40, 24}, 0}));
  EXPECT_EQ(joint.parts[3], (HfPart{"blocks.0.experts.1.up.weight", {40, 24}, 120}));
  EXPECT_THAT(tensors.at("model.layers.0.mlp.experts.down_proj").shape, ElementsAre(12, 24, 40));
  EXPECT_TRUE(tensors.contains("model.layers.1.mlp.gate.weight"));
}

TEST(HfExperts, AParameterWithoutAPlaceIsNamed) {
  ModelConfig model = small(Family::kMixtral);
  model.experts.router_bias = true;
  try {
    hf_tensors(model);
    FAIL() << "a bias of the router was left out";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().what, "transformers' MixtralForCausalLM has no tensor for blocks.0.experts.router.bias");
  }
}

}  // namespace
}  // namespace lockstep::arch
