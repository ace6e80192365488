// What is said of a forward function, and what follows from it; presets of a program's own.
#include "lockstep/arch/forward_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/arch/cost.h"
#include "lockstep/arch/own_preset.h"
#include "lockstep/base/error.h"

namespace lockstep::arch {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kModel = 24, kInner = 10, kTokens = 2 * 8;

const bool kAdded = [] {
  const auto parameters = [](const ModelConfig& m) -> std::vector<ForwardParameter> {
    return {{.name = "up", .shape = {kInner, m.hidden}}, {.name = "down", .shape = {m.hidden, kInner}, .init_std = 0.5},
            {.name = "scale", .shape = {m.hidden}, .init = Init::kOnes}};
  };
  ForwardKind said{.id = "said"}, guessed{.id = "guessed", .by_token = true};
  said.parameters = guessed.parameters = parameters;
  said.flops_per_token = [](const ModelConfig&) { return 1000.0; };
  said.kept_per_token = [](const ModelConfig&) { return 7.0; };
  add_forward_kind(said), add_forward_kind(guessed);
  add_preset({.name = "own", .section = {.family = "llama", .layers = 3, .hidden = kModel, .heads = 6, .vocab_size = 53, .max_seq_len = 16},
              .blocks = {{{.kind = "attention", .name = "attention"}, {.kind = "said", .name = "mine"}}, {{.kind = "guessed", .name = "mine"}}}});
  return true;
}();

ModelConfig own_model() {
  config::ModelSection section;
  section.preset = "own";
  return resolve_model(section);
}

LayerCost cost_of(int block, Recompute recompute = Recompute::kNone) {
  const ModelConfig model = own_model();
  return layer_cost(model, layer_spec(model, block), {.batch = 2, .seq_len = 8, .recompute = recompute});
}

TEST(OwnPreset, HasItsBlocksAndWhatASectionChanges) {
  ASSERT_TRUE(kAdded);
  EXPECT_THAT(preset_names(), Contains("own"));
  config::ModelSection section;
  section.preset = "own";
  section.layers = 5;
  const ModelConfig model = resolve_model(section);
  EXPECT_EQ(model.layers, 5);
  EXPECT_EQ(model.hidden, kModel);
  EXPECT_EQ(model.blocks, own_preset("own")->blocks);
  EXPECT_EQ(block_branches(model, 3)[1].kind, "said");
  EXPECT_EQ(block_branches(model, 4)[0].kind, "guessed");
  EXPECT_EQ(own_preset("gpt2-test"), nullptr);
  EXPECT_THROW(add_preset({.name = "gpt2-test", .section = {.layers = 1, .hidden = 1, .heads = 1}}), InternalError);
  EXPECT_THROW(add_preset({.name = "no sizes"}), InternalError);
  section.norm = config::NormPlace::kBehind;
  EXPECT_THAT([&] { resolve_model(section); }, ::testing::ThrowsMessage<ConfigError>(HasSubstr("model.norm")));
}

TEST(ForwardKind, HasRowsOfTheTable) {
  std::vector<ParamSpec> rows = param_table(own_model(), {.size = 2, .rank = 1}, {2});
  ASSERT_EQ(rows.size(), 4U);  // and its norm
  EXPECT_EQ(rows[1].name, "blocks.1.mine.up.weight");
  EXPECT_EQ(rows[1].local_shape, (std::vector<int64_t>{kInner, kModel})) << "whole on every rank";
  EXPECT_EQ(rows[2].init_std, 0.5);
  EXPECT_TRUE(rows[2].weight_decay);
  EXPECT_EQ(rows[3].init, Init::kOnes);
  EXPECT_FALSE(rows[3].weight_decay);
}

TEST(ForwardKind, CostsWhatItsAuthorSays) {
  const double guessed = 2.0 * 2 * kInner * kModel;
  EXPECT_EQ(cost_of(2).forward_flops, guessed * kTokens);
  EXPECT_EQ(cost_of(2).backward_flops, 2 * guessed * kTokens);
  EXPECT_EQ(cost_of(2).weight_flops, 0) << "all gradients are made in I";
  // A block of that branch alone: x, the norm's statistic and output, the graph.
  const int64_t x = 4 * kTokens * kModel, graph = 4 * kTokens * (kModel + 2 * kInner + kInner + 2 * kModel);
  EXPECT_EQ(cost_of(2).kept, 2 * x + 4 * kTokens + graph);
  EXPECT_EQ(cost_of(2, Recompute::kFull).kept, x);
  EXPECT_EQ(cost_of(2, Recompute::kSelective).restored, x + graph);
  // Between I and W: x, what the branch read and the statistic, gradients of norm and parameters.
  EXPECT_EQ(cost_of(2).held, 3 * x + 4 * kTokens + 4 * (2 * kInner * kModel + kModel));
  const ModelConfig model = own_model();
  int64_t said = 0;
  for (const Value& value : block_kept_parts(model, {.batch = 2, .seq_len = 8}, 1))
    if (value.kept.as == "said graph") said = value.bytes;
  EXPECT_EQ(said, 4 * kTokens * 7);
}

TEST(ForwardKind, SaysWhatNoLayoutDoesWithIt) {
  EXPECT_TRUE(branch_kind("said").whole_only && branch_kind("said").whole_sequences);
  EXPECT_TRUE(branch_kind("guessed").whole_only && !branch_kind("guessed").whole_sequences);
  EXPECT_FALSE(branch_kind("mlp").whole_only || branch_kind("mlp").whole_sequences);
  EXPECT_THROW(add_forward_kind({.id = "mlp"}), InternalError);
  EXPECT_THROW(forward_kind("mlp"), InternalError);
}

}  // namespace
}  // namespace lockstep::arch
