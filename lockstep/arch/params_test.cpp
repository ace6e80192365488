#include "lockstep/arch/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <algorithm>
#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig preset(const std::string& name) {
  return resolve_model({.preset = name}, name == "gpt2-10m" ? 8192 : 0);  // the vocabulary of the others is known
}

const ParamSpec& find(const std::vector<ParamSpec>& table, const std::string& name) {
  for (const ParamSpec& spec : table) {
    if (spec.name == name) return spec;
  }
  throw std::runtime_error("no parameter " + name);
}

TEST(ParamTableTest, CountsOfWellKnownModels) {
  EXPECT_EQ(num_parameters(preset("gpt2-124m")), 124439808);   // as Hugging Face counts `gpt2`
  EXPECT_EQ(num_parameters(preset("gpt2-1.5b")), 1557611200);  // `gpt2-xl`
  EXPECT_EQ(num_parameters(preset("llama3-8b")), 8030261248);  // `Meta-Llama-3-8B`
  EXPECT_EQ(num_parameters(preset("llama-15m")), 15191712);
  EXPECT_NEAR(static_cast<double>(num_parameters(preset("gpt-100b"))) / 100e9, 1.0, 0.001);
  EXPECT_NEAR(static_cast<double>(num_parameters(preset("gpt2-10m"))) / 10e6, 1.0, 0.1);
}

// As the checkpoints on huggingface.co count theirs.
TEST(ParamTableTest, CountsOfOtherFamilies) {
  const auto count = [](ModelConfig model) { return num_parameters(model); };
  EXPECT_EQ(count({.family = Family::kMistral, .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8,
                   .head_size = 128, .ffn = 14336, .vocab_size = 32768, .max_seq_len = 32768, .tied = false}),
            7248023552);  // Mistral-7B-v0.3
  EXPECT_EQ(count({.family = Family::kQwen2, .layers = 24, .hidden = 896, .heads = 14, .kv_heads = 2, .head_size = 64,
                   .ffn = 4864, .vocab_size = 151936, .max_seq_len = 32768}),
            494032768);  // Qwen2.5-0.5B
  EXPECT_EQ(count({.family = Family::kQwen3, .layers = 28, .hidden = 1024, .heads = 16, .kv_heads = 8,
                   .head_size = 128, .ffn = 3072, .vocab_size = 151936, .max_seq_len = 40960}),
            596049920);  // Qwen3-0.6B
}

TEST(ParamTableTest, BiasesAndNormsOfHeadsAreRowsOfTheirOwn) {
  ModelConfig model = preset("llama-test");
  model.qkv_bias = model.out_bias = model.mlp_bias = model.qk_norm = true;
  const auto table = param_table(model);
  EXPECT_EQ(find(table, "blocks.0.attention.k.bias").fuse, "blocks.0.attention.qkv.bias");
  EXPECT_THAT(find(table, "blocks.0.attention.k.bias").shape, ElementsAre(16));
  EXPECT_EQ(find(table, "blocks.0.mlp.gate.bias").fuse, "blocks.0.mlp.gate_up.bias");
  EXPECT_THAT(find(table, "blocks.0.mlp.down.bias").shape, ElementsAre(48));
  const ParamSpec& q_norm = find(table, "blocks.1.attention.q_norm.weight");
  EXPECT_THAT(q_norm.shape, ElementsAre(4));
  EXPECT_EQ(q_norm.init, Init::kOnes);
  EXPECT_TRUE(q_norm.per_head);
  EXPECT_FALSE(q_norm.weight_decay);
}

TEST(ParamTableTest, Gpt2RowsInOrderOfTheForwardPass) {
  const ModelConfig model = preset("gpt2-test");
  const auto table = param_table(model);
  std::vector<std::string> names;
  for (size_t i = 0; i < 18; ++i) names.push_back(table[i].name);
  EXPECT_THAT(names,
              ElementsAre("embed.tokens.weight", "embed.positions.weight", "blocks.0.attention_norm.weight",
                          "blocks.0.attention_norm.bias", "blocks.0.attention.q.weight", "blocks.0.attention.k.weight",
                          "blocks.0.attention.v.weight", "blocks.0.attention.q.bias", "blocks.0.attention.k.bias",
                          "blocks.0.attention.v.bias", "blocks.0.attention.out.weight", "blocks.0.attention.out.bias",
                          "blocks.0.mlp_norm.weight", "blocks.0.mlp_norm.bias", "blocks.0.mlp.up.weight",
                          "blocks.0.mlp.up.bias", "blocks.0.mlp.down.weight", "blocks.0.mlp.down.bias"));
  const ParamSpec& tokens = find(table, "embed.tokens.weight");
  EXPECT_THAT(tokens.tied_layers, ElementsAre(3));
  EXPECT_TRUE(tokens.weight_decay);
  EXPECT_THAT(find(table, "blocks.1.mlp.down.weight").shape, ElementsAre(48, 192));
  EXPECT_DOUBLE_EQ(find(table, "blocks.1.mlp.down.weight").init_std, 0.02 / std::sqrt(4.0));
  EXPECT_EQ(find(table, "blocks.1.attention_norm.weight").init, Init::kOnes);
  EXPECT_FALSE(find(table, "blocks.1.mlp.up.bias").weight_decay);
  EXPECT_EQ(table.back().name, "head.norm.bias");
}

TEST(ParamTableTest, LlamaHasGroupedHeadsNoBiasesAndItsOwnHead) {
  const auto table = param_table(preset("llama-test"));
  for (const ParamSpec& spec : table) EXPECT_FALSE(spec.name.ends_with("bias")) << spec.name;
  EXPECT_THAT(find(table, "blocks.2.attention.q.weight").shape, ElementsAre(48, 48));
  EXPECT_THAT(find(table, "blocks.2.attention.k.weight").shape, ElementsAre(16, 48));
  EXPECT_EQ(find(table, "blocks.2.mlp.gate.weight").fuse, "blocks.2.mlp.gate_up.weight");
  EXPECT_THAT(find(table, "embed.tokens.weight").tied_layers, ElementsAre());
  EXPECT_THAT(find(table, "head.weight").shape, ElementsAre(512, 48));
}

// How often each element of a parameter of two dimensions at most lies in a piece of the ranks of a tp group.
std::vector<int> times_held(const ModelConfig& model, int size, size_t param) {
  std::vector<int> times(static_cast<size_t>(param_table(model)[param].numel()));
  for (int rank = 0; rank < size; ++rank) {
    const ParamSpec spec = param_table(model, {.size = size, .rank = rank})[param];
    const bool matrix = spec.shape.size() == 2;
    const int64_t width = matrix ? spec.shape[1] : 1, left = matrix ? spec.local_offset[1] : 0;
    for (int64_t row = 0; row < spec.local_shape[0]; ++row)
      for (int64_t column = 0; column < (matrix ? spec.local_shape[1] : 1); ++column)
        times.at(static_cast<size_t>((spec.local_offset[0] + row) * width + left + column)) += 1;
  }
  return times;
}

TEST(TensorShardTest, PiecesOfAllRanksHoldEachElementOncePerCopy) {
  config::ModelSection odd{.preset = "llama-test"};
  odd.kv_heads = 2;
  odd.vocab_size = 511;
  ModelConfig with_norms = resolve_model(odd);
  with_norms.qk_norm = with_norms.qkv_bias = true;
  for (const ModelConfig& model : {preset("gpt2-test"), preset("llama-test"), with_norms})
    for (int size : {1, 2, 4, 12}) {
      const auto first = param_table(model, {.size = size});
      for (size_t param = 0; param < first.size(); ++param)
        EXPECT_THAT(times_held(model, size, param), testing::Each(first[param].copies)) << first[param].name << size;
    }
}

TEST(TensorShardTest, CopiesAreNeighboursAndCountFromTheFirst) {
  config::ModelSection section{.preset = "llama-test"};
  section.kv_heads = 2;
  const ModelConfig model = resolve_model(section);
  for (int rank = 0; rank < 4; ++rank) {
    const auto table = param_table(model, {.size = 4, .rank = rank});
    const ParamSpec& k = find(table, "blocks.0.attention.k.weight");
    EXPECT_THAT(k.local_shape, ElementsAre(4, 48));
    EXPECT_THAT(k.local_offset, ElementsAre(rank / 2 * 4, 0));
    EXPECT_EQ(k.copies, 2);
    EXPECT_EQ(k.copy, rank % 2);
    EXPECT_TRUE(k.partial);
    EXPECT_EQ(k.cut_dim, 0);
    const ParamSpec& norm = find(table, "head.norm.weight");
    EXPECT_EQ(norm.copies, 4);
    EXPECT_EQ(norm.copy, rank);
    EXPECT_THAT(norm.local_shape, ElementsAre(48));
    EXPECT_EQ(norm.cut_dim, -1);
    const ParamSpec& q = find(table, "blocks.0.attention.q.weight");
    EXPECT_THAT(q.local_offset, ElementsAre(rank * 12, 0));
    EXPECT_EQ(q.copies, 1);
    EXPECT_THAT(find(table, "blocks.0.attention.out.weight").local_offset, ElementsAre(0, rank * 12));
    EXPECT_THAT(find(table, "blocks.0.mlp.down.weight").local_shape, ElementsAre(48, 36));
  }
}

TEST(TensorShardTest, WhatIsAPartOfASum) {
  ModelConfig model = preset("llama-test");
  model.qk_norm = true;
  for (const bool sequence : {true, false})
    for (const ParamSpec& spec : param_table(model, {.size = 2, .sequence_parallel = sequence})) {
      const bool by_rows = spec.cut == TensorCut::kNone && sequence;
      EXPECT_EQ(spec.partial, by_rows || spec.per_head) << spec.name;
    }
  for (const ParamSpec& spec : param_table(model, {.size = 1, .sequence_parallel = true}))
    EXPECT_FALSE(spec.partial) << spec.name;
}

// What would be a part of a sum over tp is the second unit of its layer, with shards of its own: behind all dense units, which lie as
// they would without it. An embedding keeps one unit.
TEST(RowGroups, LieBehindTheDenseOnesAndAreCutByTheirOwnShards) {
  const ModelConfig model = preset("gpt2-test");
  const std::vector<ParamSpec> one = param_table(model, {.size = 2, .rank = 1, .sequence_parallel = true});
  const std::vector<ParamSpec> table = param_table(model, {.size = 2, .rank = 1, .sequence_parallel = true, .row_groups = true});
  const auto layers = static_cast<int>(model.layers) + 2;
  ASSERT_EQ(table.size(), one.size());
  for (size_t row = 0; row < table.size(); ++row) {
    const bool rows = one[row].partial && one[row].layer > 0;
    EXPECT_EQ(table[row].name, one[row].name);
    EXPECT_EQ(table[row].group, rows ? ParameterGroup::kRows : ParameterGroup::kDense) << table[row].name;
    EXPECT_EQ(table[row].unit, table[row].layer + (rows ? layers : 0)) << table[row].name;
    EXPECT_EQ(table[row].partial, one[row].partial && !rows) << table[row].name;
    EXPECT_EQ(table[row].copies, rows ? 1 : one[row].copies) << "who holds rows is a fact of their domain";
    EXPECT_EQ(one[row].unit, one[row].layer);
  }
  EXPECT_EQ(find(table, "blocks.1.mlp.down.bias").unit, 2 + layers);
  EXPECT_EQ(find(table, "embed.positions.weight").unit, 0);
  const FlatLayout flat = flat_layout(table, {2, 4});
  // Units by id; the head is tied: it has no dense one.
  ASSERT_EQ(flat.units.size(), static_cast<size_t>(2 * layers - 2));
  int64_t begin = 0, part = 0;
  for (size_t i = 0; i < flat.units.size(); ++i) {
    const FlatUnit& unit = flat.units[i];
    const bool rows = static_cast<int>(i) >= layers - 1;
    EXPECT_EQ(unit.group, rows ? ParameterGroup::kRows : ParameterGroup::kDense);
    EXPECT_EQ(unit.id, static_cast<int>(i) + (rows ? 2 : 0));
    EXPECT_EQ(unit.shards, rows ? 4 : 2);
    EXPECT_EQ(unit.part() % 16, 0);
    EXPECT_EQ(unit.begin, begin);
    EXPECT_EQ(unit.part_begin, part);
    begin = unit.end;
    part += unit.part();
    for (const FlatSlot& slot : unit.slots) EXPECT_EQ(table[static_cast<size_t>(slot.param)].unit, unit.id);
  }
  EXPECT_EQ(flat.numel, begin);
  EXPECT_EQ(flat.parts, part);
}

TEST(TensorShardTest, UnitsHaveTheSamePlaceOnEveryRank) {
  config::ModelSection section{.preset = "gpt2-test"};
  section.vocab_size = 511;
  section.ffn = 190;
  const ModelConfig model = resolve_model(section);
  const FlatLayout first = flat_layout(param_table(model, {.size = 4}));
  for (int rank = 1; rank < 4; ++rank) {
    const std::vector<ParamSpec> table = param_table(model, {.size = 4, .rank = rank});
    const FlatLayout flat = flat_layout(table);
    EXPECT_EQ(flat.numel, first.numel);
    ASSERT_EQ(flat.units.size(), first.units.size());
    for (size_t i = 0; i < flat.units.size(); ++i) {
      EXPECT_EQ(flat.units[i].begin, first.units[i].begin);
      EXPECT_EQ(flat.units[i].end, first.units[i].end);
      for (size_t slot = 0; slot < flat.units[i].slots.size(); ++slot) {
        if (table[flat.units[i].slots[slot].param].cut != TensorCut::kNone) continue;
        EXPECT_EQ(flat.units[i].slots[slot].offset, first.units[i].slots[slot].offset);
      }
    }
  }
}

void expect_sound(const std::vector<ParamSpec>& table, int shards) {
  const FlatLayout flat = flat_layout(table, {shards, shards});
  std::set<int> seen;
  int64_t next_unit = 0;
  for (const FlatUnit& unit : flat.units) {
    EXPECT_EQ(unit.begin, next_unit);
    next_unit = unit.end;
    EXPECT_EQ((unit.end - unit.begin) % shards, 0);
    int64_t cursor = unit.begin;
    for (size_t i = 0; i < unit.slots.size(); ++i) {
      const FlatSlot& slot = unit.slots[i];
      const ParamSpec& spec = table[slot.param];
      EXPECT_TRUE(seen.insert(slot.param).second);
      EXPECT_EQ(spec.layer, unit.layer);
      EXPECT_EQ(slot.numel, spec.numel());
      EXPECT_GE(slot.offset, cursor);
      if (!spec.fuse.empty() && i > 0 && table[unit.slots[i - 1].param].fuse == spec.fuse) {
        EXPECT_EQ(slot.offset, cursor) << spec.name << " is not beside its neighbour";
      }
      cursor = slot.offset + slot.numel;
    }
    EXPECT_LE(cursor, unit.end);
  }
  EXPECT_EQ(seen.size(), table.size());
  EXPECT_EQ(flat.numel, next_unit);
}

// Every element of every parameter lies in exactly one part, at the place where the unit has it.
void expect_shards_cover(const std::vector<ParamSpec>& table, int shards) {
  const FlatLayout flat = flat_layout(table, {shards, shards});
  for (const FlatUnit& unit : flat.units) {
    std::map<int, int64_t> next;
    for (int shard = 0; shard < shards; ++shard)
      for (const ShardSlot& part : shard_slots(unit, shard)) {
        EXPECT_EQ(part.begin, next[part.param]);
        next[part.param] += part.numel;
        const auto slot = std::find_if(unit.slots.begin(), unit.slots.end(),
                                       [&](const FlatSlot& candidate) { return candidate.param == part.param; });
        EXPECT_EQ(unit.begin + shard * unit.numel() / shards + part.offset, slot->offset + part.begin);
      }
    for (const FlatSlot& slot : unit.slots) EXPECT_EQ(next[slot.param], slot.numel);
  }
}

TEST(FlatLayoutTest, RectanglesOfARangeCoverItInOrder) {
  EXPECT_EQ(rectangles({10}, 3, 4).size(), 1u);
  for (int64_t begin = 0; begin < 21; ++begin)
    for (int64_t numel = 1; begin + numel <= 21; ++numel) {
      const std::vector<Rectangle> parts = rectangles({3, 7}, begin, numel);
      EXPECT_LE(parts.size(), 3u);
      int64_t at = begin;
      for (const Rectangle& part : parts) {
        EXPECT_EQ(part.offset[0] * 7 + part.offset[1], at);
        EXPECT_EQ(part.begin, at - begin);
        EXPECT_TRUE(part.shape[0] == 1 || part.shape[1] == 7);
        EXPECT_LE(part.offset[1] + part.shape[1], 7);
        at += part.shape[0] * part.shape[1];
      }
      EXPECT_EQ(at, begin + numel);
    }
}

TEST(FlatLayoutTest, ShardsCoverEverythingAndNothingOverlaps) {
  config::ModelSection odd{.preset = "llama-test"};
  odd.hidden = 60;
  odd.head_size = 6;
  odd.ffn = 91;
  odd.vocab_size = 257;
  for (const ModelConfig& model :
       {preset("gpt2-test"), preset("llama-test"), preset("gpt2-124m"), resolve_model(odd)}) {
    for (int shards : {1, 2, 3, 4, 7, 8, 64}) {
      expect_sound(param_table(model), shards);
      expect_shards_cover(param_table(model), shards);
    }
  }
}

TEST(FlatLayoutTest, OneShardHasNoPadding) {
  const ModelConfig model = preset("gpt2-test");
  const FlatLayout flat = flat_layout(param_table(model));
  EXPECT_EQ(flat.numel, num_parameters(model));
  EXPECT_EQ(flat.units.size(), layer_table(model).size());
}

TEST(FlatLayoutTest, PaddingOfARealModelIsSmall) {
  const ModelConfig model = preset("gpt2-124m");
  EXPECT_LT(static_cast<double>(flat_layout(param_table(model), {8, 8}).numel),
            1.01 * static_cast<double>(num_parameters(model)));
}

template <typename Call>
Message error_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.message();
  }
  ADD_FAILURE() << "no ConfigError";
  return {};
}

TEST(ResolveModelTest, DefaultPresetTakesItsVocabularyFromTheTokenizer) {
  EXPECT_EQ(resolve_model({}, 4096).vocab_size, 4096);
  EXPECT_EQ(resolve_model({}, 4096).hidden, 384);
  EXPECT_EQ(error_of([] { resolve_model({}); }).code, "LS1114");
}

TEST(ResolveModelTest, EveryPresetResolves) {
  for (const std::string& name : preset_names())
    EXPECT_GT(num_parameters(resolve_model({.preset = name}, 512)), 0) << name;
}

TEST(ResolveModelTest, SizesThatFollowFromAChangedOneFollow) {
  config::ModelSection section{.preset = "gpt2-124m"};
  section.hidden = 1024;
  section.heads = 16;
  const ModelConfig model = resolve_model(section);
  EXPECT_EQ(model.head_size, 64);
  EXPECT_EQ(model.kv_heads, 16);
  EXPECT_EQ(model.ffn, 4096);
}

TEST(ResolveModelTest, FieldsAloneDescribeAModel) {
  config::ModelSection section;
  section.family = "llama";
  section.hidden = 192;
  const Message missing = error_of([&] { resolve_model(section, 300); });
  EXPECT_THAT(missing.what, HasSubstr("needs layers, heads"));
  EXPECT_EQ(missing.way_out, "give them, as layers = 12 and heads = 3, or use model.preset gpt2-10m or gpt2-124m");
  section.layers = 2;
  section.heads = 6;
  const ModelConfig model = resolve_model(section, 300);
  EXPECT_EQ(model.family, Family::kLlama);
  EXPECT_EQ(model.ffn, 512);
  EXPECT_EQ(model.head_size, 32);
}

TEST(ResolveModelTest, NamesEveryContradictionWithItsEquation) {
  config::ModelSection section{.preset = "llama-test"};
  section.heads = 6;
  section.hidden = 50;
  const Message message = error_of([&] { resolve_model(section); });
  EXPECT_EQ(message.code, "LS1110");
  EXPECT_THAT(message.what, HasSubstr("heads(6) % kv_heads(4) = 2"));
  EXPECT_THAT(message.what, HasSubstr("hidden(50) % heads(6) = 2"));
}

TEST(ResolveModelTest, SizesBeyondReasonAreRefusedBeforeAnythingOverflows) {
  config::ModelSection section{.preset = "gpt2-124m"};
  section.hidden = int64_t{1} << 60;
  EXPECT_THAT(error_of([&] { resolve_model(section); }).what,
              HasSubstr("hidden(1152921504606846976) is not within 1 to 2147483648"));
  section.hidden = section.ffn = section.vocab_size = section.heads = int64_t{1} << 31;
  EXPECT_THAT(error_of([&] { resolve_model(section); }).what, HasSubstr("parameters are too many"));
  section = {.preset = "gpt2-test"};
  section.layers = 1 << 20;
  EXPECT_THAT(error_of([&] { resolve_model(section); }).what, HasSubstr("layers(1048576) is not within 1 to 65536"));
}

TEST(ResolveModelTest, UnknownPresetNamesTheNearest) {
  const Message message = error_of([] { resolve_model({.preset = "gpt2-124"}); });
  EXPECT_EQ(message.code, "LS1111");
  EXPECT_THAT(message.way_out, HasSubstr("gpt2-124m"));
}

TEST(DescribeTest, OneLine) {
  EXPECT_EQ(describe(preset("gpt2-124m")), "gpt2 12 x 768, 12 heads, ffn 3072, vocab 50257, 124.4M parameters");
  EXPECT_EQ(describe(preset("llama3-8b")),
            "llama 32 x 4096, 32 heads (8 kv), ffn 14336, vocab 128256, 8.03B parameters");
}

}  // namespace
}  // namespace lockstep::arch
