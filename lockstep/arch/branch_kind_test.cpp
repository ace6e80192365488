// Blocks as data: whose turn it is, what follows the list, what is refused.
#include "lockstep/arch/branch_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Branch kAttention{.kind = "attention", .name = "attention"}, kMlp{.kind = "mlp", .name = "mlp"},
    kSecond{.kind = "mlp", .name = "second"};

ModelConfig model_of(std::vector<BlockSpec> blocks) {
  ModelConfig model{.family = Family::kLlama, .layers = 3, .hidden = 24, .heads = 6, .kv_heads = 2, .head_size = 4, .ffn = 40,
                    .vocab_size = 53, .max_seq_len = 16};
  model.blocks = std::move(blocks);
  return model;
}

std::vector<std::string> names_of(const ModelConfig& model, int layer) {
  std::vector<std::string> names;
  for (const ParamSpec& spec : param_table(model, {}, {layer})) names.push_back(spec.name);
  return names;
}

TEST(Blocks, ComeInTurn) {
  const ModelConfig model = model_of({{kMlp, kSecond}, {kAttention}});
  EXPECT_TRUE(size_problems(model).empty());
  EXPECT_THAT(names_of(model, 1),
              ElementsAre("blocks.0.mlp_norm.weight", "blocks.0.mlp.gate.weight", "blocks.0.mlp.up.weight", "blocks.0.mlp.down.weight",
                          "blocks.0.second_norm.weight", "blocks.0.second.gate.weight", "blocks.0.second.up.weight",
                          "blocks.0.second.down.weight"));
  EXPECT_THAT(names_of(model, 2),
              ElementsAre("blocks.1.attention_norm.weight", "blocks.1.attention.q.weight", "blocks.1.attention.k.weight",
                          "blocks.1.attention.v.weight", "blocks.1.attention.out.weight"));
  EXPECT_EQ(names_of(model, 3).size(), 8U);
  EXPECT_EQ(param_table(model, {}, {3})[1].fuse, "blocks.2.mlp.gate_up.weight");
  const auto pattern = [&](int layer) { return layer_pattern(model, layer_spec(model, layer)); };
  EXPECT_EQ(pattern(1), pattern(3));
  EXPECT_NE(pattern(1), pattern(2));
  EXPECT_NE(pattern(0), pattern(4));
}

// Two layers of two MLPs, one of attention, by hand.
TEST(Blocks, FlopsFollowTheList) {
  const double mlp = 3 * 24 * 40, attention = 24 * (2 * 24 + 2 * 8), pairs = 2 * 24 * 16 * 0.5;
  EXPECT_EQ(model_flops_per_token(model_of({{kMlp, kSecond}, {kAttention}}), 16), 6 * (4 * mlp + attention + pairs + 24 * 53));
}

TEST(Blocks, CallsCarryTheNamesOfTheirBranch) {
  const ModelConfig model = model_of({{kAttention, kSecond}});
  const LayerDescription block = describe_layer(model, layer_spec(model, 1), {.batch = 2, .seq_len = 8, .tensor = {.size = 2}});
  std::vector<std::string> parts;
  for (const LayerCall& call : block.calls) parts.push_back(call.part);
  EXPECT_THAT(parts, ElementsAre("attention.out", "attention.qkv", "second.down", "second.gate_up"));
}

// LayerNorm's bias too, where the family has it; behind the branch's own rows.
TEST(Blocks, NormsStandWhereTheListSaysSo) {
  ModelConfig model = model_of({{kAttention, kMlp}});
  Branch& attention = model.blocks[0][0];
  Branch& mlp = model.blocks[0][1];
  attention.norm_behind = true;
  mlp.norm_before = false;
  EXPECT_THAT(names_of(model, 1),
              ElementsAre("blocks.0.attention_norm.weight", "blocks.0.attention.q.weight", "blocks.0.attention.k.weight",
                          "blocks.0.attention.v.weight", "blocks.0.attention.out.weight", "blocks.0.attention_post_norm.weight",
                          "blocks.0.mlp.gate.weight", "blocks.0.mlp.up.weight", "blocks.0.mlp.down.weight"));
  EXPECT_EQ(param_table(model, {}, {1})[5].of, config::ParameterClass::kNorm);
  model.family = Family::kGpt2;
  EXPECT_THAT(names_of(model, 1), ::testing::Contains("blocks.0.attention_post_norm.bias"));
}

TEST(Blocks, AreChosenByTheConfiguration) {
  using config::BranchOrder, config::NormPlace;
  config::ModelSection section{.preset = "llama-test"};
  const ModelConfig usual = resolve_model(section);
  const auto block_of = [&](NormPlace norm, BranchOrder order) {
    section.norm = norm, section.branches = order;
    const ModelConfig model = resolve_model(section);
    EXPECT_TRUE(size_problems(model).empty());
    return block_branches(model, 1);
  };
  EXPECT_TRUE(usual.blocks.empty());
  EXPECT_EQ(block_of(NormPlace::kBefore, BranchOrder::kSequential), usual_block());
  EXPECT_EQ(resolve_model(section), usual);
  Branch attention = kAttention, mlp = kMlp;
  mlp.beside = true;
  EXPECT_EQ(block_of(NormPlace::kBefore, BranchOrder::kParallelNorms), (BlockSpec{attention, mlp}));
  mlp.norm_before = false;
  EXPECT_EQ(block_of(NormPlace::kBefore, BranchOrder::kParallel), (BlockSpec{attention, mlp}));
  EXPECT_THAT(describe(resolve_model(section)), HasSubstr("attention beside mlp (same norm)"));
  attention.norm_behind = mlp.norm_behind = true;
  EXPECT_EQ(block_of(NormPlace::kBoth, BranchOrder::kParallel), (BlockSpec{attention, mlp}));
  attention.norm_before = mlp.beside = false;
  EXPECT_EQ(block_of(NormPlace::kBehind, BranchOrder::kSequential), (BlockSpec{attention, mlp}));
  EXPECT_EQ(parse_model_json(model_json(resolve_model(section)), "state.json"), resolve_model(section));
  EXPECT_THROW(hf_config_json(resolve_model(section), nullptr), ConfigError);
}

TEST(Blocks, AreKeptByCheckpoints) {
  const ModelConfig usual = model_of({}), model = model_of({{kMlp}, {kAttention, kSecond}});
  EXPECT_FALSE(model_json(usual).contains("blocks"));
  EXPECT_EQ(parse_model_json(model_json(model), "state.json"), model);
  EXPECT_NE(parse_model_json(model_json(model), "state.json"), usual);
}

TEST(Blocks, ContradictionsAreRefused) {
  Branch beside = kMlp, unknown = kMlp;
  beside.beside = true;
  unknown.kind = "hyena";
  const std::vector<std::pair<BlockSpec, std::string>> cases = {{{beside, kAttention}, ".mlp: beside no branch, it is the first"},
                                                                {{unknown}, "there is no kind of branches \"hyena\""},
                                                                {{kMlp, kMlp}, "that of another branch: \"mlp\""},
                                                                {BlockSpec{}, "blocks[1] has no branch"}};
  for (const auto& [block, what] : cases) {
    const ModelConfig model = model_of({{kAttention}, block});
    EXPECT_THAT(join(size_problems(model), ", "), HasSubstr(what));
    try {
      describe_layer(model, layer_spec(model, 1), {});
      ADD_FAILURE() << what;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.message().code, "LS1124");
      EXPECT_THAT(error.message().what, HasSubstr(what));
    }
    EXPECT_THROW(parse_model_json(model_json(model), "state.json"), CheckpointError);
  }
}

TEST(Blocks, NoClassOfTransformersHasOthers) {
  EXPECT_NO_THROW(hf_config_json(model_of({}), nullptr));
  EXPECT_THROW(hf_config_json(model_of({{kMlp, kAttention}}), nullptr), ConfigError);
}

TEST(BranchKinds, HaveOneEntryEach) {
  EXPECT_EQ(branch_kind("mlp").id, "mlp");
  EXPECT_THROW(branch_kind("hyena"), InternalError);
  EXPECT_THROW(add_branch_kind({.id = "mlp"}), InternalError);
}

}  // namespace
}  // namespace lockstep::arch
