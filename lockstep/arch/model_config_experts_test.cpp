// Models with experts: from a section, in words, as JSON, and what contradicts itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "lockstep/arch/model_config.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep::arch {
namespace {

using config::Balance;
using config::Router;
using ::testing::HasSubstr;

std::string refusal(const config::ModelSection& section) {
  try {
    resolve_model(section, 512);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

config::ModelSection llama(const config::ModelSection& experts) {
  config::ModelSection section = experts;
  section.preset = "llama-test";
  return section;
}

TEST(ExpertModels, CountsOfWellKnownModels) {
  const ModelConfig mixtral = resolve_model({.preset = "mixtral-8x7b"}), qwen = resolve_model({.preset = "qwen3-30b-a3b"});
  EXPECT_EQ(num_parameters(mixtral), 46702792704);  // as huggingface.co counts Mixtral-8x7B-v0.1
  EXPECT_EQ(num_active_parameters(mixtral), 12879925248);
  EXPECT_EQ(num_parameters(qwen), 30532122624);  // Qwen3-30B-A3B
  EXPECT_EQ(num_active_parameters(qwen), 3353032704);
  EXPECT_EQ(describe(mixtral),
            "mixtral 32 x 4096, 32 heads (8 kv), 8 experts of ffn 14336, 2 per token, vocab 32000, 46.70B parameters, 12.88B active");
}

TEST(ExpertModels, OfADenseOneAllParametersAreActive) {
  const ModelConfig dense = resolve_model({.preset = "gpt2-124m"});
  EXPECT_FALSE(dense.has_experts());
  EXPECT_EQ(num_active_parameters(dense), num_parameters(dense));
}

TEST(ExpertModels, WhatIsNotGivenFollows) {
  const ExpertSizes plain = resolve_model(llama({.experts = 4})).experts;
  EXPECT_EQ(plain, (ExpertSizes{.count = 4, .per_token = 2, .ffn = 144}));
  EXPECT_EQ(resolve_model(llama({.experts = 1})).experts.per_token, 1);
  const config::ModelSection wide{.preset = "qwen3-30b-a3b", .hidden = 4096, .heads = 32};
  EXPECT_EQ(resolve_model(wide).experts.ffn, 2 * 768);
  EXPECT_EQ(resolve_model({.preset = "mixtral-test", .ffn = 128}).experts.ffn, 128);
  const ExpertSizes groups = resolve_model(llama({.experts = 8, .router_groups = 4})).experts;
  EXPECT_EQ(groups.groups, 4);
  EXPECT_EQ(groups.top_groups, 4);
}

TEST(ExpertModels, TheFieldsOverAPreset) {
  const config::ModelSection section = llama({.experts = 8,
                                              .experts_per_token = 3,
                                              .expert_ffn = 20,
                                              .shared_experts = 2,
                                              .dense_layers = config::DenseLayers{.first = 1},
                                              .router = Router::kSigmoid,
                                              .router_groups = 4,
                                              .router_top_groups = 2,
                                              .routed_scale = 2.5});
  const ModelConfig model = resolve_model(section, 0, {.balance = Balance::kBias});
  EXPECT_EQ(model.experts, (ExpertSizes{.count = 8, .per_token = 3, .ffn = 20, .shared = 2, .router = Router::kSigmoid, .groups = 4,
                                        .top_groups = 2, .routed_scale = 2.5, .router_bias = true, .dense_layers = {0}}));
  EXPECT_TRUE(model.experts.is_dense(0));
  EXPECT_FALSE(model.experts.is_dense(1));
  EXPECT_THAT(describe(model), HasSubstr("ffn 144 in 1 block, 8 experts of ffn 20, 3 and 2 shared per token"));
  EXPECT_EQ(parse_model_json(model_json(model), "state.json"), model);
}

TEST(ExpertModels, ARouterHasABiasWhereItBalances) {
  for (const Balance balance : {Balance::kNone, Balance::kAux, Balance::kBias})
    EXPECT_EQ(resolve_model({.preset = "mixtral-test"}, 0, {.balance = balance}).experts.router_bias, balance == Balance::kBias);
  EXPECT_FALSE(resolve_model({.preset = "llama-test"}, 0, {.balance = Balance::kBias}).experts.router_bias);
}

// A checkpoint from before there were experts is one of a dense model, whose JSON has no key of theirs.
TEST(ExpertModels, ADenseModelIsTheSameJson) {
  const ModelConfig dense = resolve_model({.preset = "llama-test"});
  EXPECT_FALSE(model_json(dense).contains("experts"));
  const ModelConfig sparse = resolve_model({.preset = "mixtral-test"});
  Json json = model_json(sparse);
  EXPECT_EQ(json["experts"]["router"].get<std::string>(), "softmax_after_topk");
  EXPECT_EQ(parse_model_json(json, "state.json"), sparse);
  json["experts"]["router"] = "softmax_topk";
  EXPECT_THROW(parse_model_json(json, "state.json"), CheckpointError);
  json = model_json(sparse);
  json["experts"]["per_token"] = 9;
  EXPECT_THROW(parse_model_json(json, "state.json"), CheckpointError);
  json["experts"].erase("per_token");
  EXPECT_THROW(parse_model_json(json, "state.json"), CheckpointError);
  json.erase("experts");
  EXPECT_FALSE(parse_model_json(json, "state.json").has_experts());
}

TEST(ExpertModels, EveryContradictionHasItsEquation) {
  const std::pair<config::ModelSection, const char*> all[] = {
      {llama({.experts = 4, .experts_per_token = 5}), "experts_per_token(5) > experts(4)"},
      {llama({.experts = 6, .router_groups = 4}), "experts(6) % router_groups(4) = 2"},
      {llama({.experts = 8, .router_groups = 2, .router_top_groups = 3}), "router_top_groups(3) > router_groups(2)"},
      {llama({.experts = 8, .experts_per_token = 3, .router_groups = 4, .router_top_groups = 1}),
       "experts_per_token(3) > router_top_groups(1) x experts(8) / router_groups(4) = 2"},
      {llama({.experts = 8, .router = Router::kExpertChoice, .router_groups = 4}), "with router expert_choice experts choose"},
      {llama({.experts = 8, .dense_layers = config::DenseLayers{.first = 4}}), "dense_layers name a block beyond layers(3)"},
      {llama({.experts = 8, .dense_layers = config::DenseLayers{.first = std::nullopt, .list = {1, 3}}}), "beyond layers(3)"},
      {llama({.experts = 8, .dense_layers = config::DenseLayers{.first = 3}}), "dense_layers name all layers(3)"},
      {llama({.experts = 1 << 15}), "layers(3) x experts(32768) = 98304, more than 32768"},
      {llama({.experts = 1 << 16}), "experts(65536) is not within 1 to 32768"},
      {llama({.shared_experts = 1}), "model.shared_experts is of experts, but model.experts is not given"},
      {llama({.router = Router::kSoftmax}), "model.router is of experts"},
      {{.preset = "gpt2-test", .experts = 4}, "family gpt2 has no gated MLP"},
      {{.family = "mixtral", .layers = 2, .hidden = 48, .heads = 4}, "family mixtral has experts, but model.experts is not given"},
  };
  for (const auto& [section, what] : all) EXPECT_THAT(refusal(section), HasSubstr(what));
}

TEST(ExpertModels, AWayOutMendsIt) {
  EXPECT_THAT(refusal(llama({.experts = 4, .experts_per_token = 5})), HasSubstr("use model.experts_per_token 4, or model.experts 5"));
  EXPECT_THAT(refusal(llama({.router = Router::kSoftmax})), HasSubstr("use model.experts 8, or leave model.router out"));
}

}  // namespace
}  // namespace lockstep::arch
