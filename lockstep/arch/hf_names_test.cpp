#include "lockstep/arch/hf_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "lockstep/arch/params.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;

ModelConfig small(Family family) {
  ModelConfig model{.family = family, .layers = 12, .hidden = 24, .heads = 4, .kv_heads = 2, .head_size = 8, .ffn = 40,
                    .vocab_size = 61, .max_seq_len = 16, .tied = false};
  if (family == Family::kGpt2) model.kv_heads = 4, model.head_size = 6, model.tied = true;
  return model;
}

std::map<std::string, HfTensor> by_name(const ModelConfig& model) {
  std::map<std::string, HfTensor> tensors;
  for (const HfTensor& tensor : hf_tensors(model)) tensors[tensor.name] = tensor;
  return tensors;
}

TEST(HfNames, EveryParameterIsAPartOfOneTensor) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kMistral, Family::kQwen2, Family::kQwen3}) {
    for (const bool tied : {false, true}) {
      ModelConfig model = small(family);
      model.tied = tied;
      std::set<std::string> parts, tensors;
      for (const HfTensor& tensor : hf_tensors(model)) {
        EXPECT_TRUE(tensors.insert(tensor.name).second) << tensor.name;
        for (const HfPart& part : tensor.parts) EXPECT_TRUE(parts.insert(part.name).second) << part.name;
        EXPECT_EQ(canonical_hf_name(family, tensor.name), tensor.name);
        EXPECT_FALSE(is_ignored_hf_name(family, tensor.name));
      }
      std::set<std::string> ours;
      for (const ParamSpec& spec : param_table(model)) ours.insert(spec.name);
      EXPECT_EQ(parts, ours);
      EXPECT_EQ(tensors.contains("lm_head.weight"), !tied);
    }
  }
}

// Shapes as GPT2LMHeadModel stores them.
TEST(HfNames, Gpt2StoresTransposedAndJoined) {
  const auto tensors = by_name(small(Family::kGpt2));
  EXPECT_EQ(tensors.size(), 2 + 12 * 12 + 2u);
  const HfTensor& joint = tensors.at("transformer.h.11.attn.c_attn.weight");
  EXPECT_THAT(joint.shape, ElementsAre(24, 72));
  EXPECT_TRUE(joint.transposed);
  EXPECT_THAT(joint.parts, ElementsAre(HfPart{"blocks.11.attention.q.weight", {24, 24}, 0},
                                       HfPart{"blocks.11.attention.k.weight", {24, 24}, 24},
                                       HfPart{"blocks.11.attention.v.weight", {24, 24}, 48}));
  EXPECT_THAT(tensors.at("transformer.h.0.attn.c_attn.bias").shape, ElementsAre(72));
  EXPECT_FALSE(tensors.at("transformer.h.0.attn.c_attn.bias").transposed);
  EXPECT_THAT(tensors.at("transformer.h.3.mlp.c_fc.weight").shape, ElementsAre(24, 40));
  EXPECT_THAT(tensors.at("transformer.h.3.mlp.c_proj.weight").shape, ElementsAre(40, 24));
  EXPECT_THAT(tensors.at("transformer.wte.weight").shape, ElementsAre(61, 24));
}

TEST(HfNames, QwenHasItsBiasesAndNorms) {
  const auto qwen2 = by_name(small(Family::kQwen2)), qwen3 = by_name(small(Family::kQwen3)),
             llama = by_name(small(Family::kLlama));
  EXPECT_THAT(qwen2.at("model.layers.0.self_attn.k_proj.bias").shape, ElementsAre(16));
  EXPECT_FALSE(qwen2.contains("model.layers.0.self_attn.o_proj.bias"));
  EXPECT_THAT(qwen3.at("model.layers.11.self_attn.q_norm.weight").shape, ElementsAre(8));
  EXPECT_THAT(llama.at("model.layers.0.self_attn.q_proj.weight").shape, ElementsAre(32, 24));
  EXPECT_FALSE(llama.contains("model.layers.0.self_attn.q_proj.bias"));
  EXPECT_EQ(llama.size(), 1 + 12 * 9 + 2u);
  EXPECT_EQ(qwen2.size(), llama.size() + 12 * 3);
  EXPECT_EQ(qwen3.size(), llama.size() + 12 * 2);
}

TEST(HfNames, ListsAsTransformersDoes) {
  ModelConfig model = small(Family::kQwen3);
  model.layers = 1;
  std::vector<std::string> names;
  for (const HfTensor& tensor : hf_tensors(model)) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                                 "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
                                 "model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.q_norm.weight",
                                 "model.layers.0.self_attn.k_norm.weight", "model.layers.0.mlp.gate_proj.weight",
                                 "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
                                 "model.layers.0.input_layernorm.weight",
                                 "model.layers.0.post_attention_layernorm.weight", "model.norm.weight",
                                 "lm_head.weight"));
}

TEST(HfNames, ThePrefixMayBeAbsent) {
  EXPECT_EQ(canonical_hf_name(Family::kGpt2, "h.0.ln_1.weight"), "transformer.h.0.ln_1.weight");
  EXPECT_EQ(canonical_hf_name(Family::kLlama, "norm.weight"), "model.norm.weight");
  EXPECT_EQ(canonical_hf_name(Family::kGpt2, "lm_head.weight"), "lm_head.weight");
}

TEST(HfNames, OldBuffersAreIgnored) {
  EXPECT_TRUE(is_ignored_hf_name(Family::kGpt2, "transformer.h.10.attn.bias"));
  EXPECT_TRUE(is_ignored_hf_name(Family::kGpt2, "transformer.h.0.attn.masked_bias"));
  EXPECT_TRUE(is_ignored_hf_name(Family::kLlama, "model.layers.31.self_attn.rotary_emb.inv_freq"));
  for (const char* name : {"transformer.h..attn.bias", "transformer.h.x.attn.bias", "transformer.h.0.attn.bias2",
                           "h.0.attn.bias", "transformer.h.0.mlp.bias"})
    EXPECT_FALSE(is_ignored_hf_name(Family::kGpt2, name)) << name;
}

}  // namespace
}  // namespace lockstep::arch
