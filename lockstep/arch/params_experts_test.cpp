// The rows of experts: whose they are, in which group, and what a rank has of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/arch/params.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;

ModelConfig model_of(config::ModelSection section = {}) {
  section.preset = "mixtral-test";
  return resolve_model(section, 0, {.balance = config::Balance::kBias});
}

const ParamSpec& find(const std::vector<ParamSpec>& table, const std::string& name) {
  const auto found = std::ranges::find(table, name, &ParamSpec::name);
  if (found == table.end()) throw std::runtime_error("no parameter " + name);
  return *found;
}

TEST(ExpertRows, OfABlock) {
  const std::vector<ParamSpec> table = param_table(model_of({.experts = 2, .shared_experts = 2}), {}, {1});
  std::vector<std::string> names;
  for (const ParamSpec& spec : table)
    if (spec.name.find("experts") != std::string::npos) names.push_back(spec.name.substr(std::string("blocks.0.").size()));
  EXPECT_THAT(names, ElementsAre("experts_norm.weight", "experts.router.weight", "experts.router.bias", "experts.shared.gate.weight",
                                 "experts.shared.up.weight", "experts.shared.down.weight", "experts.0.gate.weight",
                                 "experts.0.up.weight", "experts.1.gate.weight", "experts.1.up.weight", "experts.0.down.weight",
                                 "experts.1.down.weight"));
  EXPECT_THAT(find(table, "blocks.0.experts.router.weight").shape, ElementsAre(2, 64));
  EXPECT_THAT(find(table, "blocks.0.experts.router.bias").shape, ElementsAre(2));
  EXPECT_THAT(find(table, "blocks.0.experts.shared.down.weight").shape, ElementsAre(64, 2 * 96));
  EXPECT_THAT(find(table, "blocks.0.experts.1.up.weight").shape, ElementsAre(96, 64));
  EXPECT_EQ(find(table, "blocks.0.experts.1.up.weight").fuse, "blocks.0.experts.gate_up.weight");
  EXPECT_EQ(find(table, "blocks.0.experts.1.down.weight").fuse, "blocks.0.experts.down.weight");
}

TEST(ExpertRows, DenseBlocksHaveNone) {
  const std::vector<ParamSpec> table = param_table(model_of({.dense_layers = config::DenseLayers{.first = 1}}));
  for (const ParamSpec& spec : table) {
    const bool mlp = spec.name.find(".mlp") != std::string::npos, experts = spec.name.find(".experts") != std::string::npos;
    EXPECT_TRUE(!mlp || spec.layer == 1) << spec.name;
    EXPECT_TRUE(!experts || spec.layer > 1) << spec.name;
  }
}

// Units of experts lie behind all others, and each rank has as many.
TEST(ExpertRows, ARankHasItsOwnInAGroupOfTheirs) {
  const ModelConfig model = model_of();
  const auto layers = static_cast<int>(model.layers) + 2;
  std::map<std::string, int> held;
  int64_t size = 0;
  for (int rank = 0; rank < 4; ++rank) {  // two experts each
    const std::vector<ParamSpec> table = param_table(model, {.experts = {.ep = 4, .ep_rank = rank}});
    for (const ParamSpec& spec : table) {
      ++held[spec.name];
      const bool own = spec.expert >= 0;
      EXPECT_EQ(spec.group, own ? ParameterGroup::kExperts : ParameterGroup::kDense) << spec.name;
      EXPECT_EQ(spec.unit, spec.layer + (own ? 2 * layers : 0)) << spec.name;
      EXPECT_TRUE(!own || spec.expert / 2 == rank) << spec.name;
    }
    const FlatLayout flat = flat_layout(table, {1, 1, 3});
    if (rank == 0) size = flat.numel;
    EXPECT_EQ(flat.numel, size);
    ASSERT_EQ(flat.units.size(), static_cast<size_t>(layers + 4));
    for (size_t i = 0; i < flat.units.size(); ++i) EXPECT_EQ(flat.units[i].shards, static_cast<int>(i) < layers ? 1 : 3);
  }
  for (const auto& [name, times] : held) {
    const bool expert = name.find(".gate.") != std::string::npos || name.find(".up.") != std::string::npos || name.find(".down.") != std::string::npos;
    EXPECT_EQ(times, expert ? 1 : 4) << name;
  }
  EXPECT_EQ(held.size(), param_table(model).size());
}

// Gate and up are cut by rows, down by columns; nobody else of tp has a copy, and tp cuts none of them.
TEST(ExpertRows, EtpCutsEachExpertAndTpDoesNot) {
  const ModelConfig model = model_of();
  const TensorShard shard{.size = 4, .rank = 1, .sequence_parallel = true, .experts = {.etp = 2, .etp_rank = 1}};
  const std::vector<ParamSpec> table = param_table(model, shard);
  const ParamSpec& up = find(table, "blocks.2.experts.5.up.weight");
  EXPECT_THAT(up.local_shape, ElementsAre(48, 64));
  EXPECT_THAT(up.local_offset, ElementsAre(48, 0));
  EXPECT_EQ(up.cut_dim, 0);
  const ParamSpec& down = find(table, "blocks.2.experts.5.down.weight");
  EXPECT_THAT(down.local_shape, ElementsAre(64, 48));
  EXPECT_THAT(down.local_offset, ElementsAre(0, 48));
  EXPECT_EQ(down.cut_dim, 1);
  for (const ParamSpec* spec : {&up, &down}) {
    EXPECT_FALSE(spec->partial);
    EXPECT_EQ(spec->copies, 1);
    EXPECT_EQ(spec->largest_numel, 48 * 64);
  }
  const ParamSpec whole = find(param_table(model, {.size = 4}), "blocks.2.experts.5.up.weight");
  EXPECT_THAT(whole.local_shape, ElementsAre(96, 64));
  EXPECT_EQ(whole.cut_dim, -1);
}

// Each rank of tp routes its own rows, with sequence parallelism or without.
TEST(ExpertRows, ARouterIsPartialOverTp) {
  for (const bool sequence : {true, false})
    for (const bool row_groups : {true, false}) {
      const std::vector<ParamSpec> table =
          param_table(model_of(), {.size = 2, .sequence_parallel = sequence, .row_groups = row_groups});
      for (const char* name : {"blocks.1.experts.router.weight", "blocks.1.experts.router.bias"}) {
        const ParamSpec& spec = find(table, name);
        EXPECT_EQ(spec.partial, !row_groups) << name;
        EXPECT_EQ(spec.group, row_groups ? ParameterGroup::kRows : ParameterGroup::kDense) << name;
        EXPECT_EQ(spec.copies, row_groups ? 1 : 2) << name;
      }
    }
  EXPECT_FALSE(find(param_table(model_of()), "blocks.1.experts.router.weight").partial);
}

// Under Muon a router is AdamW's, with decay; its bias is nobody else's, whatever the rules say, and has no place in a norm.
TEST(ExpertRows, HaveTheirOptimizers) {
  std::vector<ParamSpec> table = param_table(model_of());
  const config::OptimizerSection choice{.kind = config::OptimizerKind::kMuon, .rules = {{{.match = "*", .lr = 3, .decay = 0.5}}}};
  EXPECT_TRUE(rule_problems(choice, table).empty());
  choose_optimizers(choice, table);
  for (const ParamSpec& spec : table) {
    const bool bias = spec.name.ends_with("router.bias");
    EXPECT_EQ(spec.in_norm, !bias) << spec.name;
    EXPECT_EQ(spec.update.lr_factor, bias ? 1 : 3) << spec.name;
    if (bias) {
      EXPECT_EQ(spec.update.optimizer->id, "balance");
      EXPECT_FALSE(spec.weight_decay);
      EXPECT_EQ(spec.init, Init::kZeros);
    }
    EXPECT_TRUE(spec.expert < 0 || spec.update.optimizer->id == "muon") << spec.name;
  }
  const ParamSpec& router = find(table, "blocks.0.experts.router.weight");
  EXPECT_EQ(router.of, config::ParameterClass::kRouter);
  EXPECT_EQ(router.update.optimizer->id, "adamw");
  EXPECT_TRUE(router.weight_decay);
  EXPECT_TRUE(is_scattered_matrix(find(table, "blocks.0.experts.1.up.weight"), 2));
}

// A parameter without slots among others of its unit: they lie as they would beside it, and it has none.
TEST(ExpertRows, ABiasHasNoSlots) {
  const std::vector<ParamSpec> table = param_table(model_of());
  for (const int shards : {1, 3}) {
    const FlatLayout flat = flat_layout(table, {shards, shards, shards});
    for (const FlatUnit& unit : flat.units)
      for (int shard = 0; shard < shards; ++shard) {
        const std::vector<ShardSlot> pieces = shard_slots(unit, shard);
        const std::vector<std::vector<int64_t>> offsets = slot_offsets(table, unit, shard);
        for (size_t i = 0; i < pieces.size(); ++i) {
          const bool bias = table[static_cast<size_t>(pieces[i].param)].name.ends_with("router.bias");
          EXPECT_EQ(offsets[i].size(), bias ? 0U : 2U);
          for (size_t slot = 0; slot < offsets[i].size(); ++slot)
            EXPECT_LE(offsets[i][slot] + pieces[i].numel, slot_buffers(table, unit)[slot].numel);
        }
      }
  }
}

}  // namespace
}  // namespace lockstep::arch
