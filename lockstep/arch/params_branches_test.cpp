// Rows of state spaces: shapes, what tensor parallelism does with heads and groups, and which rows are Partial.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/base/check.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;

ModelConfig model_of(int64_t groups) {
  ModelConfig model = resolve_model({.preset = "hybrid-test"});  // 12 heads of 8 x 16
  model.state_space.groups = groups;
  return model;
}

const ParamSpec& find(const std::vector<ParamSpec>& table, const std::string& name) {
  const auto found = std::ranges::find(table, name, &ParamSpec::name);
  LOCKSTEP_CHECK(found != table.end(), "no parameter ", name);
  return *found;
}

TEST(StateSpaceRows, OfTheContract) {
  const std::vector<ParamSpec> table = param_table(model_of(2));
  std::vector<std::string> names;
  for (const ParamSpec& spec : table)
    if (spec.name.starts_with("blocks.0.ssm")) names.push_back(spec.name.substr(9));
  EXPECT_THAT(names, ElementsAre("ssm_norm.weight", "ssm.z.weight", "ssm.x.weight", "ssm.b.weight", "ssm.c.weight", "ssm.dt.weight",
                                 "ssm.conv_x.weight", "ssm.conv_b.weight", "ssm.conv_c.weight", "ssm.conv_x.bias", "ssm.conv_b.bias",
                                 "ssm.conv_c.bias", "ssm.dt_bias.weight", "ssm.a_log.weight", "ssm.d.weight", "ssm.norm.weight", "ssm.out.weight"));
  EXPECT_THAT(find(table, "blocks.0.ssm.b.weight").shape, ElementsAre(2 * 16, 48));
  EXPECT_THAT(find(table, "blocks.0.ssm.conv_x.weight").shape, ElementsAre(96, 4));
  EXPECT_DOUBLE_EQ(find(table, "blocks.0.ssm.conv_x.weight").init_std, 0.5) << "1 / sqrt of the tokens that it sees";
  for (const char* name : {"blocks.0.ssm.dt_bias.weight", "blocks.0.ssm.a_log.weight", "blocks.0.ssm.d.weight"}) {
    EXPECT_THAT(find(table, name).shape, ElementsAre(12));
    EXPECT_TRUE(find(table, name).fp32 && find(table, name).per_head && !find(table, name).weight_decay) << name;
  }
}

// Groups that the ranks divide are cut with the heads; fewer than ranks are whole everywhere, and a rank's gradient is a part of a sum.
TEST(StateSpaceRows, GroupsAreCutOrWhole) {
  struct Case {
    int64_t groups;
    int tp;
    bool cut;
  };
  for (const Case& c : {Case{2, 2, true}, Case{4, 2, true}, Case{2, 4, false}, Case{1, 3, false}, Case{1, 4, false}, Case{12, 4, true}}) {
    for (int rank = 0; rank < c.tp; ++rank) {
      const std::vector<ParamSpec> table = param_table(model_of(c.groups), {.size = c.tp, .rank = rank});
      for (const char* part : {"b.weight", "c.weight", "conv_b.weight", "conv_c.weight", "conv_b.bias"}) {
        const ParamSpec& spec = find(table, std::string("blocks.0.ssm.") + part);
        SCOPED_TRACE(spec.name + " of " + std::to_string(c.groups) + " groups on " + std::to_string(c.tp));
        EXPECT_EQ(spec.local_shape[0], c.cut ? c.groups * 16 / c.tp : c.groups * 16);
        EXPECT_EQ(spec.local_offset[0], c.cut ? rank * spec.local_shape[0] : 0);
        EXPECT_EQ(spec.copies, c.cut ? 1 : c.tp);
        EXPECT_EQ(spec.partial, !c.cut);
        EXPECT_EQ(spec.cut == TensorCut::kNone, !c.cut) << "whole rows are summed over tp, not over ranks of one head";
        EXPECT_EQ(spec.cut_dim, c.cut ? 0 : -1);
      }
      const ParamSpec& x = find(table, "blocks.0.ssm.x.weight");
      EXPECT_EQ(x.local_offset[0], rank * 96 / c.tp);
      EXPECT_FALSE(x.partial);
      EXPECT_THAT(find(table, "blocks.0.ssm.norm.weight").local_shape, ElementsAre(96 / c.tp));
      EXPECT_THAT(find(table, "blocks.0.ssm.out.weight").local_shape, ElementsAre(48, 96 / c.tp));
    }
  }
  EXPECT_EQ(find(param_table(model_of(2)), "blocks.0.ssm.b.weight").cut, TensorCut::kGroups) << "one rank cuts nothing";
}

TEST(StateSpaceRows, NumbersOfHeadsArePartialInEveryMode) {
  for (const bool sequence : {false, true})
    for (const bool fp32 : {false, true})
      for (const bool rows : {false, true}) {
        const TensorShard shard{.size = 2, .rank = 1, .sequence_parallel = sequence, .row_groups = rows, .fp32_group = fp32};
        const ParamSpec spec = find(param_table(model_of(1), shard), "blocks.0.ssm.a_log.weight");
        EXPECT_THAT(spec.local_shape, ElementsAre(12));
        EXPECT_EQ(spec.group, fp32 ? ParameterGroup::kFp32 : rows ? ParameterGroup::kRows : ParameterGroup::kDense);
        EXPECT_EQ(spec.partial, !rows) << "its group's domain sums it over tp";
        EXPECT_EQ(spec.copies, rows ? 1 : 2);
      }
}

// A group of its own would take them out of the one matrix that the layer multiplies with.
TEST(StateSpaceRows, WhatIsFusedStaysWithItsNeighbours) {
  for (const bool rows : {false, true}) {
    const std::vector<ParamSpec> table = param_table(model_of(1), {.size = 2, .rank = 0, .row_groups = rows});
    std::set<int> units;
    for (const ParamSpec& spec : table)
      if (spec.name.starts_with("blocks.0.ssm.conv_")) units.insert(spec.unit);
    EXPECT_THAT(units, ElementsAre(1));
    EXPECT_TRUE(find(table, "blocks.0.ssm.conv_b.weight").partial);
    EXPECT_TRUE(find(table, "blocks.0.ssm.b.weight").partial);
  }
}

TEST(StateSpaceRows, AnOptimizerOfMatricesTakesTheProjections) {
  std::vector<ParamSpec> table = param_table(model_of(2));
  choose_optimizers({.kind = config::OptimizerKind::kMuon}, table);
  EXPECT_TRUE(find(table, "blocks.0.ssm.b.weight").update.optimizer->whole_matrix);
  EXPECT_FALSE(find(table, "blocks.0.ssm.conv_x.weight").update.optimizer->whole_matrix);
  EXPECT_FALSE(find(table, "blocks.0.ssm.a_log.weight").update.optimizer->whole_matrix);
}

TEST(NormsOfOnePlus, BeginAtZero) {
  ModelConfig model = resolve_model({.preset = "llama-test"});
  model.family = Family::kGemma3;
  const std::vector<ParamSpec> table = param_table(model);
  EXPECT_EQ(find(table, "blocks.0.attention_norm.weight").init, Init::kZeros);
  EXPECT_EQ(find(table, "head.norm.weight").init, Init::kZeros);
}

}  // namespace
}  // namespace lockstep::arch
