// Rules and slots of two optimizers in one unit.
#include "lockstep/arch/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using config::OptimizerKind;
using config::ParameterClass;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelConfig model() {
  config::ModelSection section;
  section.preset = "llama-test";
  return resolve_model(section, 512);
}

std::vector<ParamSpec> table_of(const config::OptimizerSection& choice, const TensorShard& shard = {}) {
  std::vector<ParamSpec> table = param_table(model(), shard);
  choose_optimizers(choice, table);
  return table;
}

const ParamSpec& row(const std::vector<ParamSpec>& table, const std::string& name) {
  return *std::ranges::find(table, name, &ParamSpec::name);
}

TEST(UpdateRules, MuonIsOfTheMatricesOfBlocks) {
  for (const ParamSpec& spec : table_of({.kind = OptimizerKind::kMuon})) {
    const bool matrix = spec.name.starts_with("blocks.") && spec.shape.size() == 2;
    EXPECT_EQ(spec.update.optimizer->id, matrix ? "muon" : "adamw") << spec.name;
    EXPECT_EQ(spec.of == ParameterClass::kMatrix, matrix) << spec.name;
  }
  for (const ParamSpec& spec : table_of({})) EXPECT_EQ(spec.update, UpdateRule{}) << spec.name;
}

TEST(UpdateRules, TheFirstRuleThatNamesAParameterCounts) {
  const std::vector<ParamSpec> table =
      table_of({.kind = OptimizerKind::kMuon,
                .rules = {{{.match = "blocks.0.*.weight", .of = ParameterClass::kMatrix, .optimizer = OptimizerKind::kAdamW},
                           {.of = ParameterClass::kNorm, .lr = 0.5, .decay = 0.2},
                           {.match = "*", .lr = 3}}}});
  EXPECT_EQ(row(table, "blocks.0.mlp.down.weight").update.optimizer->id, "adamw");
  EXPECT_EQ(row(table, "blocks.0.mlp.down.weight").update.lr_factor, 1);
  EXPECT_EQ(row(table, "blocks.1.mlp.down.weight").update.optimizer->id, "muon");
  EXPECT_EQ(row(table, "blocks.1.mlp.down.weight").update.lr_factor, 3);
  const ParamSpec& norm = row(table, "head.norm.weight");
  EXPECT_EQ(norm.update.lr_factor, 0.5);
  EXPECT_EQ(norm.update.weight_decay, 0.2);
  EXPECT_TRUE(norm.weight_decay);
}

TEST(UpdateRules, SayWhatTheyCannotBe) {
  const auto problems = [](const config::OptimizerRule& rule) { return rule_problems({.rules = {{rule}}}, param_table(model())); };
  EXPECT_THAT(problems({.of = ParameterClass::kMatrix, .lr = 2}), IsEmpty());
  EXPECT_THAT(problems({.match = "head.norm.weight", .optimizer = OptimizerKind::kMuon}),
              ElementsAre(HasSubstr("gives head.norm.weight to muon, which updates matrices")));
  EXPECT_THAT(problems({.match = "haed.*", .lr = 2}), ElementsAre("rule 1 of optimizer.rules names no parameter"));
  std::vector<ParamSpec> table = param_table(model());
  EXPECT_THROW(choose_optimizers({.rules = {{{.of = ParameterClass::kNorm, .optimizer = OptimizerKind::kMuon}}}}, table), InternalError);
}

// Every piece has all slots of its optimizer, side by side without overlap, in buffers that are the same on all shards.
TEST(SlotLayout, PiecesOfAllShardsHaveTheirPlaces) {
  for (const int shards : {1, 2, 3, 8})
    for (const int tp : {1, 2}) {
      std::vector<int64_t> sizes;
      for (int rank = 0; rank < tp; ++rank) {
        const std::vector<ParamSpec> table = table_of({.kind = OptimizerKind::kMuon}, {.size = tp, .rank = rank});
        const FlatLayout flat = flat_layout(table, {shards, shards});
        std::vector<int64_t> here;
        for (const FlatUnit& unit : flat.units) {
          const std::vector<SlotBuffer> buffers = slot_buffers(table, unit);
          for (const SlotBuffer& buffer : buffers) here.push_back(buffer.numel);
          for (int shard = 0; shard < shards; ++shard) {
            const std::vector<ShardSlot> pieces = shard_slots(unit, shard);
            const std::vector<std::vector<int64_t>> offsets = slot_offsets(table, unit, shard);
            ASSERT_EQ(offsets.size(), pieces.size());
            std::vector<int64_t> used(buffers.size(), 0);
            for (size_t i = 0; i < pieces.size(); ++i) {
              const ParamSpec& spec = table[static_cast<size_t>(pieces[i].param)];
              ASSERT_EQ(offsets[i].size(), spec.update.optimizer->slots.size());
              for (size_t slot = 0; slot < offsets[i].size(); ++slot) {
                EXPECT_GE(offsets[i][slot], used[slot]) << spec.name;
                used[slot] = offsets[i][slot] + pieces[i].numel;
                EXPECT_LE(used[slot], buffers[slot].numel) << spec.name << " shards " << shards << " shard " << shard;
              }
            }
          }
        }
        if (rank > 0) {
          EXPECT_EQ(here, sizes);
        }
        sizes = here;
      }
    }
}

// With AdamW alone as a part has it: two buffers of its elements, each piece where the part has it.
TEST(SlotLayout, OfOneOptimizerIsThatOfTheParts) {
  const std::vector<ParamSpec> table = table_of({});
  const FlatLayout flat = flat_layout(table, {3, 3});
  for (const FlatUnit& unit : flat.units) {
    const int64_t part = unit.numel() / 3;
    for (const SlotBuffer& buffer : slot_buffers(table, unit)) EXPECT_EQ(buffer.numel, part);
    EXPECT_EQ(update_bytes(table, unit), (4 + 4 + 4) * part);
    const std::vector<ShardSlot> pieces = shard_slots(unit, 1);
    const std::vector<std::vector<int64_t>> offsets = slot_offsets(table, unit, 1);
    for (size_t i = 0; i < pieces.size(); ++i) EXPECT_THAT(offsets[i], ElementsAre(pieces[i].offset, pieces[i].offset));
  }
}

TEST(SlotLayout, SlotsOfATableAreThoseOfItsOptimizers) {
  const auto names = [](const config::OptimizerSection& choice) {
    std::vector<std::string> found;
    for (const StateSlot& slot : slots_of(table_of(choice))) found.emplace_back(slot.name);
    return found;
  };
  EXPECT_THAT(names({}), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(names({.kind = OptimizerKind::kMuon}), ElementsAre("exp_avg", "exp_avg_sq", "momentum_buffer"));
}

}  // namespace
}  // namespace lockstep::arch
