// Biases of experts: rows of the table, what a rank of tp, ep and etp has of them, and what each phase leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/arch/layer_description.h"
#include "lockstep/arch/params.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;

// Block 0 is dense.
ModelConfig model_of(bool biased = true) {
  ModelConfig model{.family = Family::kMixtral, .layers = 2, .hidden = 25, .heads = 4, .kv_heads = 2, .head_size = 6, .ffn = 40,
                    .vocab_size = 53, .max_seq_len = 64, .tied = false};
  model.experts = {.count = 4, .per_token = 2, .ffn = 10, .dense_layers = {0}};
  if (biased) model.experts.logit_bias = model.experts.biases = true, model.experts.clamp = 7;
  return model;
}

const ParamSpec& find(const std::vector<ParamSpec>& table, const std::string& name) {
  const auto found = std::ranges::find(table, name, &ParamSpec::name);
  if (found == table.end()) throw std::runtime_error("no parameter " + name);
  return *found;
}

TEST(ExpertBiases, StandBehindTheirWeights) {
  const std::string prefix = "blocks.1.experts.";
  std::vector<std::string> names, fused;
  for (const ParamSpec& spec : param_table(model_of(), {.experts = {.ep = 2, .ep_rank = 1}}, {2})) {
    if (!spec.name.starts_with(prefix)) continue;
    names.push_back(spec.name.substr(prefix.size()));
    if (spec.name.ends_with(".bias") && spec.expert >= 0) fused.push_back(spec.fuse.substr(prefix.size()));
  }
  EXPECT_THAT(names, ElementsAre("router.weight", "logits.bias", "2.gate.weight", "2.up.weight", "3.gate.weight", "3.up.weight", "2.gate.bias",
                                 "2.up.bias", "3.gate.bias", "3.up.bias", "2.down.weight", "3.down.weight", "2.down.bias", "3.down.bias"));
  EXPECT_THAT(fused, ElementsAre("gate_up.bias", "gate_up.bias", "gate_up.bias", "gate_up.bias", "down.bias", "down.bias"));
}

TEST(ExpertBiases, AreCounted) {
  EXPECT_EQ(num_parameters(model_of()) - num_parameters(model_of(false)), 4 + 4 * (10 + 10 + 25));
  EXPECT_EQ(num_active_parameters(model_of()) - num_active_parameters(model_of(false)), 4 + 2 * (10 + 10 + 25));
}

TEST(ExpertBiases, OfLogitsGoTheWayOfTheRouter) {
  for (const bool row_groups : {true, false})
    for (const bool fp32_group : {true, false}) {
      const std::vector<ParamSpec> table = param_table(model_of(), {.size = 2, .row_groups = row_groups, .fp32_group = fp32_group});
      const ParamSpec &bias = find(table, "blocks.1.experts.logits.bias"), &router = find(table, "blocks.1.experts.router.weight");
      EXPECT_EQ(bias.group, router.group);
      EXPECT_EQ(bias.unit, router.unit);
      EXPECT_EQ(bias.partial, router.partial);
      EXPECT_EQ(bias.copies, router.copies);
      EXPECT_EQ(bias.update.optimizer, router.update.optimizer);
      EXPECT_TRUE(bias.fp32 && bias.in_norm && !bias.weight_decay);
    }
}

// No rank has a number that another rank of etp has: what a sum over etp counts, and a norm, it counts once.
TEST(ExpertBiases, EtpCutsAll) {
  for (const char* name : {"gate", "up", "down"}) {
    int64_t held = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<ParamSpec> table = param_table(model_of(), {.size = 2, .experts = {.etp = 2, .etp_rank = rank}});
      const ParamSpec& bias = find(table, std::string("blocks.1.experts.3.") + name + ".bias");
      EXPECT_EQ(bias.group, ParameterGroup::kExperts);
      EXPECT_EQ(bias.cut_dim, 0);
      EXPECT_EQ(bias.copies, 1);
      EXPECT_FALSE(bias.partial);
      EXPECT_EQ(bias.local_offset[0], held);
      held += bias.local_shape[0];
    }
    EXPECT_EQ(held, std::string(name) == "down" ? 25 : 10);
  }
}

int64_t left_by(const LayerDescription& layer, Phase phase) {
  int64_t bytes = 0;
  for (const Step& step : layer.steps) {
    if (!step.phases.has(phase)) continue;
    if (step.what == Step::What::kTake) bytes += layer.bytes(step.index);
    if (step.what == Step::What::kDrop) bytes -= layer.bytes(step.index);
  }
  return bytes;
}

// A layer keeps nothing for its biases, and makes no call for them.
TEST(ExpertBiases, AreNoValuesAndNoCalls) {
  CostInput input{.batch = 3, .seq_len = 7};
  input.tensor.experts = {.ep = 2, .etp = 2};
  const LayerDescription with = describe_layer(model_of(), layer_spec(model_of(), 2), input),
                         without = describe_layer(model_of(false), layer_spec(model_of(false), 2), input);
  for (const Phase phase : {Phase::kForward, Phase::kEvaluate, Phase::kRecompute, Phase::kRestore, Phase::kInput, Phase::kWeight, Phase::kBackward})
    EXPECT_EQ(left_by(with, phase), left_by(without, phase));
  EXPECT_EQ(with.calls.size(), without.calls.size());
  EXPECT_EQ(with.products.size(), without.products.size());
}

TEST(ExpertBiases, AreDrawn) {
  const ModelConfig model = model_of();
  ParameterPieces pieces;
  for (const ParamSpec& spec : param_table(model, {}, {2})) pieces[spec.name.substr(std::string("blocks.1.").size())] = spec;
  std::string text;
  for (const DrawnPart& part : experts_kind().drawing(model, {.kind = "experts", .name = "experts"}, pieces))
    if (part.what == DrawnPart::What::kText) text += part.names.front() + "\n";
  EXPECT_THAT(text, ::testing::HasSubstr("softmax over the 2 largest of x router + logits.bias"));
  EXPECT_THAT(text, ::testing::HasSubstr("(up + 1) * gate * sigmoid(1.702 gate), gate at most 7, up within +-7"));
}

}  // namespace
}  // namespace lockstep::arch
