// Tensors of families that keep several parameters in one, each in its own way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/arch/hf_names.h"
#include "lockstep/arch/params.h"
#include "lockstep/arch/test_hf_config.h"
#include "lockstep/arch/test_hf_families.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;
using testing::model_of;
using testing::small;

std::map<std::string, HfTensor> by_name(const Json& config) {
  std::map<std::string, HfTensor> tensors;
  for (const HfTensor& tensor : hf_tensors(model_of(small(config)))) tensors[tensor.name] = tensor;
  return tensors;
}

TEST(HfForms, EveryParameterIsAPartOfOneTensor) {
  for (const Json& config : testing::new_families()) {
    const ModelConfig model = model_of(small(config));
    std::set<std::string> parts, tensors, ours;
    for (const HfTensor& tensor : hf_tensors(model)) {
      EXPECT_TRUE(tensors.insert(tensor.name).second) << tensor.name;
      EXPECT_EQ(canonical_hf_name(model.family, tensor.name), tensor.name);
      EXPECT_FALSE(is_ignored_hf_name(model.family, tensor.name));
      int64_t size = 0;
      for (const HfPart& part : tensor.parts) {
        EXPECT_TRUE(parts.insert(part.name).second) << part.name;
        size += elements(part.shape);
      }
      EXPECT_EQ(size, elements(tensor.shape)) << tensor.name;
    }
    for (const ParamSpec& spec : param_table(model)) ours.insert(spec.name);
    EXPECT_EQ(parts, ours);
    EXPECT_EQ(tensors.contains(std::string(hf_head_name(model.family))), !model.tied);
  }
}

// Heads of q, k and v in turn.
TEST(HfForms, GptNeoxByHeads) {
  const auto tensors = by_name(testing::pythia());
  const HfTensor& joint = tensors.at("gpt_neox.layers.3.attention.query_key_value.weight");
  EXPECT_THAT(joint.shape, ElementsAre(96, 32));
  EXPECT_THAT(joint.parts, ElementsAre(HfPart{"blocks.3.attention.q.weight", {32, 32}, 0, 8, 24},
                                       HfPart{"blocks.3.attention.k.weight", {32, 32}, 8, 8, 24},
                                       HfPart{"blocks.3.attention.v.weight", {32, 32}, 16, 8, 24}));
  EXPECT_EQ(tensors.at("gpt_neox.layers.0.attention.query_key_value.bias").parts[2],
            (HfPart{"blocks.0.attention.v.bias", {32}, 16, 8, 24}));
  EXPECT_EQ(tensors.at("embed_out.weight").parts[0].name, "head.weight");
  EXPECT_EQ(canonical_hf_name(Family::kGptNeox, "lm_head.weight"), "embed_out.weight");
  EXPECT_TRUE(is_ignored_hf_name(Family::kGptNeox, "gpt_neox.layers.11.attention.masked_bias"));
  EXPECT_TRUE(is_ignored_hf_name(Family::kGptNeox, "gpt_neox.layers.0.attention.rotary_emb.inv_freq"));
}

TEST(HfForms, Phi3Stacks) {
  const auto tensors = by_name(testing::phi3());
  EXPECT_THAT(tensors.at("model.layers.1.self_attn.qkv_proj.weight").parts,
              ElementsAre(HfPart{"blocks.1.attention.q.weight", {32, 32}, 0}, HfPart{"blocks.1.attention.k.weight", {16, 32}, 32},
                          HfPart{"blocks.1.attention.v.weight", {16, 32}, 48}));
  EXPECT_THAT(tensors.at("model.layers.1.mlp.gate_up_proj.weight").parts,
              ElementsAre(HfPart{"blocks.1.mlp.gate.weight", {40, 32}, 0}, HfPart{"blocks.1.mlp.up.weight", {40, 32}, 40}));
}

TEST(HfForms, NormsOfGemma3AndOlmo) {
  const auto gemma = by_name(testing::gemma3()), olmo = by_name(testing::olmo3());
  const std::map<std::string, std::string> four = {{"input_layernorm", "attention_norm"},
                                                   {"post_attention_layernorm", "attention_post_norm"},
                                                   {"pre_feedforward_layernorm", "mlp_norm"},
                                                   {"post_feedforward_layernorm", "mlp_post_norm"}};
  for (const auto& [theirs, ours] : four)
    EXPECT_EQ(gemma.at("model.layers.2." + theirs + ".weight").parts[0].name, "blocks.2." + ours + ".weight");
  EXPECT_FALSE(olmo.contains("model.layers.2.input_layernorm.weight"));
  EXPECT_EQ(olmo.at("model.layers.2.post_attention_layernorm.weight").parts[0].name, "blocks.2.attention_post_norm.weight");
  EXPECT_THAT(olmo.at("model.layers.2.self_attn.k_norm.weight").shape, ElementsAre(16)) << "of all heads together";
}

TEST(HfForms, StateSpaces) {
  for (const auto& [config, block] : std::map<std::string, std::pair<Json, std::string>>{
           {"mamba2", {testing::mamba2(), "backbone.layers.0.mixer."}}, {"bamba", {testing::bamba(), "model.layers.0.mamba."}},
           {"nemotron_h", {testing::nemotron_h(), "backbone.layers.0.mixer."}}}) {
    const auto tensors = by_name(block.first);
    const auto at = [&](const char* name) { return tensors.at(block.second + name); };
    // 8 heads of 8, 2 groups of 4 numbers of state.
    EXPECT_THAT(at("in_proj.weight").shape, ElementsAre(64 + 64 + 8 + 8 + 8, 32)) << config;
    std::vector<std::string> parts;
    for (const HfPart& part : at("in_proj.weight").parts) parts.push_back(part.name);
    EXPECT_THAT(parts, ElementsAre("blocks.0.ssm.z.weight", "blocks.0.ssm.x.weight", "blocks.0.ssm.b.weight", "blocks.0.ssm.c.weight",
                                   "blocks.0.ssm.dt.weight"));
    EXPECT_THAT(at("conv1d.weight").shape, ElementsAre(80, 1, 4));
    EXPECT_THAT(at("conv1d.weight").parts, ElementsAre(HfPart{"blocks.0.ssm.conv_x.weight", {64, 4}, 0},
                                                       HfPart{"blocks.0.ssm.conv_b.weight", {8, 4}, 64},
                                                       HfPart{"blocks.0.ssm.conv_c.weight", {8, 4}, 72}));
    EXPECT_THAT(at("conv1d.bias").shape, ElementsAre(80));
    EXPECT_THAT(at("A_log").parts, ElementsAre(HfPart{"blocks.0.ssm.a_log.weight", {8}, 0}));
    EXPECT_EQ(at("D").parts[0].name, "blocks.0.ssm.d.weight");
    EXPECT_EQ(at("dt_bias").parts[0].name, "blocks.0.ssm.dt_bias.weight");
    EXPECT_EQ(at("norm.weight").parts[0].name, "blocks.0.ssm.norm.weight");
  }
  const auto nemotron = by_name(testing::nemotron_h());  // M-*M
  EXPECT_EQ(nemotron.at("backbone.layers.1.norm.weight").parts[0].name, "blocks.1.mlp_norm.weight");
  EXPECT_EQ(nemotron.at("backbone.layers.2.mixer.q_proj.weight").parts[0].name, "blocks.2.attention.q.weight");
  EXPECT_EQ(canonical_hf_name(Family::kNemotronH, "model.layers.1.mixer.up_proj.weight"), "backbone.layers.1.mixer.up_proj.weight");
}

// [E, in, out], gate and up in turn.
TEST(HfForms, GptOssExperts) {
  const auto tensors = by_name(testing::gpt_oss());
  const HfTensor &joint = tensors.at("model.layers.1.mlp.experts.gate_up_proj"), &down = tensors.at("model.layers.1.mlp.experts.down_proj");
  EXPECT_THAT(joint.shape, ElementsAre(4, 32, 80));
  EXPECT_TRUE(joint.transposed && down.transposed);
  EXPECT_EQ(joint.parts[0], (HfPart{"blocks.1.experts.0.gate.weight", {40, 32}, 0, 1, 2, 0}));
  EXPECT_EQ(joint.parts[5], (HfPart{"blocks.1.experts.2.up.weight", {40, 32}, 1, 1, 2, 2}));
  EXPECT_THAT(down.shape, ElementsAre(4, 40, 32));
  EXPECT_EQ(down.parts[3], (HfPart{"blocks.1.experts.3.down.weight", {32, 40}, 0, 0, 0, 3}));
  const HfTensor& bias = tensors.at("model.layers.1.mlp.experts.gate_up_proj_bias");
  EXPECT_THAT(bias.shape, ElementsAre(4, 80));
  EXPECT_EQ(bias.parts[7], (HfPart{"blocks.1.experts.3.up.bias", {40}, 1, 1, 2, 3}));
  EXPECT_EQ(tensors.at("model.layers.1.mlp.router.weight").parts[0].name, "blocks.1.experts.router.weight");
  EXPECT_EQ(tensors.at("model.layers.1.mlp.router.bias").parts[0].name, "blocks.1.experts.logits.bias");
  EXPECT_EQ(tensors.at("model.layers.1.self_attn.sinks").parts[0].name, "blocks.1.attention.sinks.weight");
  EXPECT_FALSE(tensors.at("model.layers.1.mlp.router.weight").transposed);
}

}  // namespace
}  // namespace lockstep::arch
