// Models whose layers differ, and state spaces: from a section, in words, as JSON, and what contradicts itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/arch/layer_description.h"
#include "lockstep/arch/layer_letters.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using config::ModelSection;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig preset(const std::string& name) { return resolve_model({.preset = name}); }

std::string refusal(const ModelSection& section) {
  try {
    resolve_model(section, 512);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

ModelSection llama(ModelSection section) {
  section.preset = "llama-test";
  return section;
}

ModelSection scans(ModelSection section) {
  section.preset = "llama-test";
  section.state_heads = 12, section.state_head_size = 8, section.state_size = 16;
  return section;
}

// A letter for the mixer of each layer and one for what follows it.
std::vector<std::string> kinds_of(const ModelConfig& model) {
  std::vector<std::string> layers;
  for (int layer = 1; layer <= static_cast<int>(model.layers); ++layer) {
    std::vector<std::string> kinds;
    for (const Branch& branch : block_branches(model, layer)) kinds.push_back(branch.name);
    layers.push_back(join(kinds, " "));
  }
  return layers;
}

TEST(StateSpaceModels, CountsOfMamba2) {
  const ModelConfig model = preset("mamba2-130m");
  EXPECT_EQ(num_parameters(model), 128989632);  // as huggingface.co counts mamba2-130m
  EXPECT_EQ(describe(model), "mamba2 24 x 768, 24 state heads of 64 x 128, vocab 50288, 129.0M parameters");
  EXPECT_EQ(model.blocks.size(), 1U);
  EXPECT_FALSE(has_attention(model));
  EXPECT_EQ(dense_mlps(model), 0);
  EXPECT_EQ(model.state_space.inner(), 2 * 768);
  EXPECT_EQ(model.state_space.chunk, 256);
}

TEST(StateSpaceModels, HybridsInWords) {
  const ModelConfig hybrid = preset("hybrid-test"), experts = preset("hybrid-experts-test");
  EXPECT_THAT(describe(hybrid), HasSubstr("llama 4 x 48, mixers MWMA (window 24), 12 heads (4 kv), 12 state heads of 8 x 16 in 2 groups, ffn 144, vocab 512, "));
  EXPECT_THAT(describe(experts), HasSubstr("2 groups, ffn 144 in 2 blocks, 8 experts of ffn 96, 2 per token, vocab 512, "));
  EXPECT_THAT(kinds_of(hybrid), ElementsAre("ssm mlp", "attention mlp", "ssm mlp", "attention mlp"));
  EXPECT_THAT(kinds_of(experts), ElementsAre("ssm mlp", "attention experts", "ssm mlp", "attention experts"));
  EXPECT_THAT(experts.experts.dense_layers, ElementsAre(0, 2));
  EXPECT_THAT(describe(resolve_model(scans({.mixers = "MA-", .feed_forwards = "D-D"}))), HasSubstr(", mixers MA-, feed_forwards D-D, 12 heads"));
}

TEST(LayerLetters, AreRepeatedInTurn) {
  const auto kinds = [](ModelSection section) { return kinds_of(resolve_model(scans(std::move(section)))); };
  EXPECT_THAT(kinds({.layers = 5, .mixers = "MA"}), ElementsAre("ssm mlp", "attention mlp", "ssm mlp", "attention mlp", "ssm mlp"));
  EXPECT_THAT(kinds({.layers = 4, .mixers = "M", .feed_forwards = "-D"}), ElementsAre("ssm", "ssm mlp", "ssm", "ssm mlp"));
  EXPECT_THAT(kinds({.layers = 3, .mixers = "M-", .feed_forwards = "D"}), ElementsAre("ssm mlp", "mlp", "ssm mlp"));
  const auto lists = [](ModelSection section) { return resolve_model(scans(std::move(section))).blocks.size(); };
  EXPECT_EQ(lists({.layers = 24, .mixers = "MMA", .feed_forwards = "D-"}), 6U);
  EXPECT_EQ(lists({.layers = 5, .mixers = "MMA", .feed_forwards = "D-"}), 5U) << "no more than layers";
  EXPECT_EQ(lists({.layers = 4, .mixers = "M", .feed_forwards = "DD"}), 1U);
}

// One norm for both, wherever norms stand; the MLP follows, or stands beside them.
TEST(LayerLetters, AStateSpaceAndAttentionBesideEachOther) {
  using config::BranchOrder, config::NormPlace;
  const auto blocks = [](ModelSection section) { return resolve_model(scans(std::move(section))).blocks; };
  const BlockSpec usual = blocks({.mixers = "H"})[0], behind = blocks({.norm = NormPlace::kBehind, .mixers = "H"})[0],
                  parallel = blocks({.branches = BranchOrder::kParallel, .mixers = "H"})[0];
  ASSERT_EQ(usual.size(), 3U);
  EXPECT_TRUE(usual[0].norm_before && usual[1].shares_input() && !usual[1].norm_behind && !usual[2].beside && usual[2].norm_before);
  EXPECT_TRUE(!behind[0].norm_before && behind[1].shares_input() && behind[1].norm_behind && behind[2].norm_behind);
  EXPECT_TRUE(parallel[1].shares_input() && parallel[2].shares_input());
  EXPECT_THAT(describe(resolve_model(scans({.mixers = "HM", .feed_forwards = "D-"}))), HasSubstr(", mixers HM, feed_forwards D-, 12 heads"));
  EXPECT_TRUE(has_attention(resolve_model(scans({.mixers = "H"}))));
}

TEST(LayerLetters, OfUsualLayersSayNothing) {
  EXPECT_EQ(resolve_model(llama({.mixers = "A", .feed_forwards = "D"})), preset("llama-test"));
  EXPECT_EQ(resolve_model(llama({.mixers = "AAA"})), preset("llama-test"));
  EXPECT_THAT(resolve_model({.preset = "hybrid-test", .mixers = "A"}).blocks, ElementsAre());
  EXPECT_EQ(resolve_model({.preset = "hybrid-test", .mixers = "A"}).state_space, StateSpaceSizes()) << "no layer has one";
}

TEST(LayerLetters, WindowsAndRotations) {
  const ModelConfig all = resolve_model(llama({.window = 7}));
  EXPECT_EQ(all.sliding_window, 7);
  EXPECT_TRUE(all.blocks.empty());
  const ModelConfig some = resolve_model(llama({.mixers = "WAN", .window = 7}));
  EXPECT_EQ(some.sliding_window, 0);
  EXPECT_EQ(window_of_layer(some, 1), 7);
  EXPECT_EQ(window_of_layer(some, 2), 0);
  EXPECT_EQ(model_of_layer(some, 1).sliding_window, 7);
  EXPECT_EQ(block_branches(some, 3).front().rotation, Rotation::kNone);
  EXPECT_EQ(block_branches(some, 2).front().rotation, Rotation::kUsual);
  const ModelConfig without = resolve_model(llama({.mixers = "AN", .window = 9}));
  EXPECT_EQ(window_of_layer(without, 2), 9) << "where no layer is W a window is that of all attention";
}

TEST(LayerLetters, NormsAndOrderHoldForEveryLayer) {
  using config::BranchOrder, config::NormPlace;
  const ModelConfig model = resolve_model(scans({.norm = NormPlace::kBoth, .branches = BranchOrder::kParallel, .mixers = "MA-"}));
  const BlockSpec first = block_branches(model, 1), alone = block_branches(model, 3);
  ASSERT_EQ(first.size(), 2U);
  EXPECT_TRUE(first[0].norm_before && first[0].norm_behind && !first[0].beside);
  EXPECT_TRUE(first[1].shares_input() && first[1].norm_behind);
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_TRUE(alone[0].norm_before && !alone[0].beside) << "it stands beside nothing";
  EXPECT_THAT(describe(model), HasSubstr("mixers MA-, norms before and behind, parallel by one norm, "));
}

TEST(StateSpaceModels, SizesThatAreNotGivenAreUsual) {
  const StateSpaceSizes sizes = resolve_model(scans({.mixers = "M"})).state_space;
  EXPECT_EQ(sizes, (StateSpaceSizes{.heads = 12, .head_size = 8, .state = 16}));
  const ModelSection section{.preset = "hybrid-test", .state_groups = 3, .state_convolution = 2};
  EXPECT_EQ(resolve_model(section).state_space, (StateSpaceSizes{.heads = 12, .head_size = 8, .groups = 3, .state = 16, .convolution = 2, .chunk = 16}));
}

TEST(StateSpaceModels, NeedNoHeadsOfAttention) {
  const ModelSection section{.family = "mamba2", .layers = 2, .hidden = 48, .vocab_size = 64, .state_heads = 12, .state_head_size = 8, .state_size = 4};
  const ModelConfig model = resolve_model(section);
  EXPECT_EQ(model.heads, 1);
  EXPECT_THAT(kinds_of(model), ElementsAre("ssm", "ssm"));
  EXPECT_EQ(resolve_model({.preset = "llama-test", .mixers = "M", .state_heads = 5, .state_head_size = 7, .state_size = 3}).kv_heads, 1);
  EXPECT_THAT(refusal({.family = "bamba", .layers = 2, .hidden = 48, .mixers = "MA"}), HasSubstr("needs heads as well"));
}

TEST(StateSpaceModels, ThereAndBackAsJson) {
  for (const char* name : {"mamba2-130m", "mamba2-test", "hybrid-test", "hybrid-experts-test"})
    EXPECT_EQ(parse_model_json(model_json(preset(name)), "state.json"), preset(name)) << name;
  ModelConfig model = preset("hybrid-experts-test");
  model.blocks[3].front().rotation = Rotation::kLocal;
  model.rope_local_theta = 5000;
  model.rotary_size = 2;
  model.attention_scale = 0.3;
  model.attention_sinks = true;
  model.embedding_scale = 7;
  model.state_space.norm_groups = 2;
  model.state_space.convolution_bias = false;
  model.state_space.projection_bias = true;
  model.state_space.step_least = 0.001, model.state_space.step_most = 0.1;
  model.experts.logit_bias = model.experts.biases = true;
  model.experts.clamp = 7;
  model.multipliers = {.key = 0.5, .z = 2, .dt = 0.25, .logits = 3};
  EXPECT_EQ(parse_model_json(model_json(model), "state.json"), model);
  ModelConfig relu = preset("hybrid-test");
  relu.activation = Activation::kRelu2;
  EXPECT_EQ(model_json(relu)["activation"].get<std::string>(), "relu2");
  EXPECT_EQ(parse_model_json(model_json(relu), "state.json"), relu);
}

// A checkpoint from before there were any of them has none of their keys.
TEST(StateSpaceModels, ADenseModelIsTheSameJson) {
  const Json json = model_json(preset("llama-test"));
  for (const char* key : {"blocks", "state_space", "activation", "rotary_size", "rope_local_theta", "attention_scale", "attention_sinks", "embedding_scale", "multipliers"})
    EXPECT_FALSE(json.contains(key)) << key;
  const Json parallel = model_json(resolve_model(llama({.branches = config::BranchOrder::kParallel})));
  for (const Json& branch : parallel.at("blocks").at(0)) EXPECT_EQ(branch.size(), 5U);
  const Json experts = model_json(preset("mixtral-test"))["experts"];
  for (const char* key : {"logit_bias", "biases", "clamp"}) EXPECT_FALSE(experts.contains(key)) << key;
}

TEST(StateSpaceModels, JsonThatContradictsItselfIsRefused) {
  const auto refused = [](const char* key, const Json& value, const char* what) {
    Json json = model_json(preset("hybrid-test"));
    json[Json::json_pointer(key)] = value;
    try {
      parse_model_json(json, "state.json");
      ADD_FAILURE() << key;
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr(what));
    }
  };
  refused("/state_space/groups", 5, "state_heads(12) % state_groups(5) = 2");
  refused("/state_space/norm_groups", 7, "norm_groups(7) do not divide");
  refused("/state_space/heads", 0, "0 heads of a state space");
  refused("/state_space/convolution", 1, "state_convolution(1) is not within 2 to 256");
  refused("/state_space/step_most", -1, "limits of a step");
  refused("/rotary_size", 3, "rotary_size(3) is odd");
  refused("/rotary_size", 6, "rotary_size(6) is not within 0 to head_size(4)");
  refused("/attention_scale", -1, "attention_scale(-1) is below 0");
  refused("/embedding_scale", 0, "embedding_scale(0) is not above 0");
  refused("/multipliers", {{"key", 2}}, "model key \"attention_in\"");
  refused("/activation", "swish", "unknown activation");
  refused("/blocks/1/0/window", -2, "a window of -2 tokens");
  refused("/blocks/1/1/window", 2, "a window or a rotation, but its kind is mlp");
  refused("/blocks/1/0/rotation", "local", "a local rotation, but rope_local_theta(0)");
  refused("/blocks/1/0/rotation", "twice", "unknown rotation");
}

TEST(LayerLetters, EveryContradictionIsTold) {
  const std::pair<ModelSection, const char*> all[] = {
      {llama({.mixers = "AXA"}), "model.mixers = \"AXA\": 'X' is none of M, A, W, N, H, -"},
      {llama({.feed_forwards = "DM"}), "'M' is none of D, E, -"},
      {llama({.mixers = ""}), "model.mixers = \"\" names no layer"},
      {llama({.mixers = "AAAA"}), "mixers(AAAA) names 4 layers, but layers(3)"},
      {llama({.mixers = "A-", .feed_forwards = "D-"}), "block 1 of mixers(A-) and feed_forwards(D-) has neither a mixer nor a feed-forward"},
      {llama({.mixers = "WA"}), "layers W of mixers(WA) need model.window"},
      {llama({.feed_forwards = "DE"}), "layers E of feed_forwards(DE) have experts, but model.experts is not given"},
      {llama({.experts = 4, .feed_forwards = "D"}), "no layer of feed_forwards(D) is E"},
      {llama({.experts = 4, .dense_layers = config::DenseLayers{.first = 1}, .feed_forwards = "DE"}), "dense_layers beside feed_forwards(DE)"},
      {llama({.mixers = "MA"}), "state spaces of mixers need model.state_heads, model.state_head_size, model.state_size as well"},
      {llama({.mixers = "MA", .state_heads = 6, .state_head_size = 8}), "state spaces of mixers need model.state_size as well"},
      {llama({.state_heads = 6}), "model.state_heads is of state spaces, which no layer has"},
      {scans({.mixers = "MA", .state_groups = 5}), "state_heads(12) % state_groups(5) = 2"},
      {scans({.mixers = "M", .state_convolution = 1}), "state_convolution(1) is not within 2 to 256"},
      {scans({.mixers = "M", .state_chunk = 1 << 20}), "state_chunk(1048576) is not within 1 to 16384"},
      {scans({.mixers = "M", .feed_forwards = "-", .window = 4}), "model.window is of attention, which no layer has"},
      {scans({.heads = 6, .mixers = "M"}), "model.heads is of attention, which no layer has"},
      {scans({.ffn = 6, .mixers = "M", .feed_forwards = "-"}), "model.ffn is of an MLP, which no layer has"},
      {scans({.branches = config::BranchOrder::kParallel, .mixers = "M", .feed_forwards = "-"}), "model.branches is of a mixer and what follows it"},
      {{.preset = "gpt2-test", .mixers = "AN"}, "family gpt2 has learned positions and turns nothing"},
      {{.preset = "deepseek-test", .mixers = "WA", .window = 4}, "latent attention has no window and no rotation of one layer"},
      {{.preset = "mamba2-test", .heads = 12, .mixers = "MA"}, "family mamba2 has state spaces alone"},
      {{.preset = "hybrid-test", .kv_heads = 12, .mixers = "M"}, "model.kv_heads is of attention"},
  };
  for (const auto& [section, what] : all) EXPECT_THAT(refusal(section), HasSubstr(what));
}

TEST(LayerLetters, AWayOutMendsIt) {
  EXPECT_THAT(refusal(llama({.mixers = "aaa"})), HasSubstr("use model.mixers AAA, or leave model.mixers out"));
  EXPECT_THAT(refusal(llama({.mixers = "AAAA"})), HasSubstr("use model.mixers AAA, or model.layers 4"));
  EXPECT_THAT(refusal(llama({.mixers = "WA"})), HasSubstr("use model.window 32, or model.mixers AA"));
  EXPECT_THAT(refusal(llama({.mixers = "MA"})), HasSubstr("give them, as state_heads = "));
  EXPECT_THAT(refusal(scans({.mixers = "MA", .state_groups = 5})), HasSubstr("use model.state_groups 4 or 6"));
}

TEST(LayerLetters, APresetThatRepeatsIsCutShort) {
  EXPECT_THAT(kinds_of(resolve_model({.preset = "hybrid-test", .layers = 2})), ElementsAre("ssm mlp", "attention mlp"));
}

TEST(LayerPatterns, EqualListsAreOne) {
  const ModelConfig hybrid = preset("hybrid-test"), experts = preset("hybrid-experts-test");
  EXPECT_THAT(first_blocks(hybrid), ElementsAre(1, 2, 4));  // M, W, A
  EXPECT_THAT(first_blocks(experts), ElementsAre(1, 2, 4));
  const ModelConfig same_list = resolve_model(scans({.layers = 6, .experts = 4, .mixers = "M", .feed_forwards = "DE"}));
  EXPECT_THAT(first_blocks(same_list), ElementsAre(1, 2)) << "one list, with experts in the place of the MLP or without";
  const ModelConfig nothing = resolve_model(scans({.layers = 6, .experts = 4, .mixers = "M", .feed_forwards = "-E"}));
  EXPECT_FALSE(is_expert_block(nothing, 1));
  EXPECT_TRUE(is_expert_block(nothing, 2));
  EXPECT_THAT(first_blocks(nothing), ElementsAre(1, 2));
}

// A block is described with its own window.
TEST(LayerPatterns, CostsGoByTheWindowOfEach) {
  const ModelConfig model = resolve_model(llama({.mixers = "WAA", .window = 8}));
  ModelConfig windowed = preset("llama-test");
  windowed.sliding_window = 8;
  const CostInput input{.batch = 2, .seq_len = 32};
  const auto flops = [&](const ModelConfig& of, int layer) { return layer_cost(of, layer_spec(of, layer), input).forward_flops; };
  EXPECT_EQ(flops(model, 1), flops(windowed, 1));
  EXPECT_EQ(flops(model, 2), flops(preset("llama-test"), 2));
  EXPECT_LT(flops(model, 1), flops(model, 2));
}

}  // namespace
}  // namespace lockstep::arch
