// Programs of ZeRO, FSDP and HSDP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

Layout sharded_layout(int zero, int blocks, int shard, int microbatches, int replicate = 1, int tp = 1,
                      const std::string& preset = "llama-test") {
  config::ModelSection section{.preset = preset};
  section.layers = blocks;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kDpReplicate] = replicate;
  degrees[mesh::Axis::kDpShard] = shard;
  degrees[mesh::Axis::kTp] = tp;
  return {.model = arch::resolve_model(section),
          .mesh = mesh::Mesh(degrees),
          .global_batch = 2 * shard * replicate * microbatches,
          .micro_batch = 2,
          .seq_len = 16,
          .bucket_bytes = 0,
          .zero = zero};
}

std::string text_of(const Layout& layout, int rank = 0) {
  return program_text(build_program(layout), layout, rank);
}

// The parameters of a layer come just before their use, gathered while the layer before computes, and go after it.
TEST(ShardingTest, Zero3OfOneBlock) {
  const Layout layout = sharded_layout(3, 1, 3, 1);
  const std::string expected =
      "UNSHARD embed | UNSHARD b0 | F embed m0 | RESHARD embed | UNSHARD head | F b0 m0 | RESHARD b0 | "
      "F head m0 | UNSHARD b0 | B head m0 | RESHARD head | REDUCE_GRAD head m0 | B b0 m0 | RESHARD b0 | "
      "REDUCE_GRAD b0 m0 | SHARD_GRAD head m0 | B embed m0 | REDUCE_GRAD embed m0 | SHARD_GRAD b0 m0 | "
      "SHARD_GRAD embed m0 | LOSS | NORM | STEP";
  for (int rank : {0, 1, 2}) EXPECT_EQ(text_of(layout, rank), expected);
}

TEST(ShardingTest, Zero2ReducesEveryMicrobatchAndGathersWhatWasUpdated) {
  EXPECT_EQ(text_of(sharded_layout(2, 1, 2, 2)),
            "F embed m0 | F b0 m0 | F head m0 | B head m0 | REDUCE_GRAD head m0 | B b0 m0 | REDUCE_GRAD b0 m0 | "
            "SHARD_GRAD head m0 | B embed m0 | REDUCE_GRAD embed m0 | SHARD_GRAD b0 m0 | F embed m1 | "
            "SHARD_GRAD embed m0 | F b0 m1 | F head m1 | B head m1 | REDUCE_GRAD head m1 | B b0 m1 | "
            "REDUCE_GRAD b0 m1 | SHARD_GRAD head m1 | B embed m1 | REDUCE_GRAD embed m1 | SHARD_GRAD b0 m1 | "
            "SHARD_GRAD embed m1 | LOSS | NORM | STEP embed | UNSHARD embed | STEP b0 | UNSHARD b0 | STEP head | "
            "UNSHARD head");
}

TEST(ShardingTest, Zero1ReducesOnceAndHsdpSumsShardsOverTheGroups) {
  EXPECT_EQ(text_of(sharded_layout(1, 1, 2, 2, 2)),
            "F embed m0 | F b0 m0 | F head m0 | B head m0 | B b0 m0 | B embed m0 | F embed m1 | F b0 m1 | F head m1 | "
            "B head m1 | REDUCE_GRAD head | B b0 m1 | REDUCE_GRAD b0 | REDUCE_SHARD head | B embed m1 | "
            "REDUCE_GRAD embed | REDUCE_SHARD b0 | REDUCE_SHARD embed | LOSS | NORM | STEP embed | UNSHARD embed | "
            "STEP b0 | UNSHARD b0 | STEP head | UNSHARD head");
  EXPECT_THAT(text_of(sharded_layout(3, 1, 2, 2, 2)),
              HasSubstr("REDUCE_GRAD b0 m1 | SHARD_GRAD head m1 | REDUCE_SHARD head | B embed m1"));
}

// As many bytes wait as may, and a unit that does not fit comes just before its use.
TEST(ShardingTest, PrefetchIsBoundedByBytes) {
  Layout layout = sharded_layout(3, 3, 2, 1);
  const std::vector<arch::FlatUnit> units = layout.flat_layout(0).units;
  layout.prefetch = 5;
  layout.prefetch_limit = units[1].numel() * 4;
  EXPECT_THAT(text_of(layout),
              HasSubstr("UNSHARD embed | UNSHARD b0 | F embed m0 | RESHARD embed | UNSHARD b1 | F b0 m0"));
  layout.prefetch_limit = units[1].numel() * 4 - 1;  // the embedding and the head are smaller than a block
  EXPECT_THAT(text_of(layout), HasSubstr("UNSHARD embed | F embed m0 | RESHARD embed | UNSHARD b0 | F b0 m0"));
  layout.prefetch_limit = 2 * units[1].numel() * 4;
  EXPECT_THAT(text_of(layout), HasSubstr("UNSHARD embed | UNSHARD b0 | UNSHARD b1 | F embed m0 | RESHARD embed | "
                                         "UNSHARD b2 | F b0 m0"));
  layout.prefetch = 0;
  EXPECT_THAT(text_of(layout), HasSubstr("UNSHARD embed | F embed m0 | RESHARD embed | UNSHARD b0 | F b0 m0"));
}

// Two actions ahead, the last block would be gathered again right where it is dropped: it stays.
TEST(ShardingTest, NothingIsDroppedToBeGatheredAgainAtOnce) {
  Layout layout = sharded_layout(3, 1, 2, 1);
  layout.prefetch = 2;
  EXPECT_THAT(text_of(layout), HasSubstr("F b0 m0 | F head m0 | B head m0 | RESHARD head | REDUCE_GRAD head m0 | "
                                         "B b0 m0 | RESHARD b0"));
}

TEST(ShardingTest, KeptParametersAreGatheredOnceAndDroppedAtTheEnd) {
  Layout layout = sharded_layout(3, 1, 2, 2);
  layout.reshard_after_forward = layout.reshard_after_microbatch = false;
  const std::string text = text_of(layout);
  EXPECT_EQ(text.find("UNSHARD b0"), text.rfind("UNSHARD b0"));
  EXPECT_THAT(text, HasSubstr("B b0 m1 | RESHARD b0"));
  EXPECT_THAT(text, Not(HasSubstr("RESHARD b0 | F")));
}

TEST(ShardingTest, RecomputationReadsTheParametersToo) {
  Layout layout = sharded_layout(3, 2, 2, 1);
  layout.recompute.assign(2, arch::Recompute::kFull);
  EXPECT_THAT(text_of(layout), HasSubstr("B head m0 | RESHARD head | REDUCE_GRAD head m0 | RECOMPUTE b1 m0 | "
                                         "UNSHARD b0 | SHARD_GRAD head m0 | B b1 m0 | RESHARD b1"));
}

TEST(ShardingTest, ATiedEmbeddingIsReadByTheHeadAndWrittenByIt) {
  const std::string text = text_of(sharded_layout(3, 2, 2, 1, 1, 1, "gpt2-test"));
  EXPECT_THAT(
      text, HasSubstr("UNSHARD embed | UNSHARD head | F b1 m0 | RESHARD b1 | F head m0 | UNSHARD b1 | "
                      "B head m0 | RESHARD embed | RESHARD head"));
  EXPECT_THAT(text, HasSubstr("B embed m0 | REDUCE_GRAD embed m0"));
  const std::vector<arch::ParamSpec> table = sharded_layout(3, 1, 2, 1, 1, 1, "gpt2-test").param_table(0);
  const auto written = [&](ActionKind kind) { return units_written({.kind = kind, .layer = 2, .microbatch = 0}, table, 2); };
  EXPECT_THAT(written(ActionKind::kForward), IsEmpty());
  EXPECT_THAT(written(ActionKind::kBackward), testing::ElementsAre(0, 2));
  EXPECT_THAT(written(ActionKind::kBackwardInput), testing::ElementsAre(0));
  EXPECT_THAT(written(ActionKind::kBackwardWeight), testing::ElementsAre(2));
  EXPECT_THAT(units_read({.kind = ActionKind::kForward, .layer = 2, .microbatch = 0}, table),
              testing::ElementsAre(0, 2));
  EXPECT_THAT(units_read({.kind = ActionKind::kBackward, .layer = 2, .microbatch = 0}, table), testing::ElementsAre(0, 2));
  EXPECT_THAT(units_read({.kind = ActionKind::kBackward, .layer = 0, .microbatch = 0}, table), IsEmpty());
  EXPECT_THAT(units_read({.kind = ActionKind::kBackwardWeight, .layer = 1, .microbatch = 0}, table), IsEmpty());
}

TEST(ShardingLayoutTest, MadeFromTheConfiguration) {
  config::RunConfig config;
  config.model.preset = "gpt2-test";
  config.train.global_batch = 32;
  config.train.micro_batch = 2;
  config.train.seq_len = 64;
  config.parallel.fsdp = true;
  config.parallel.dp_replicate = 2;
  config.parallel.tp = 2;
  config.memory.recompute.list = {arch::Recompute::kFull};
  const Layout layout = make_layout(config, arch::resolve_model(config.model), 8);
  EXPECT_EQ(describe(layout),
            "dp_replicate 2 x dp_shard 2 (zero 3) x tp 2 (sequence parallel), 4 microbatches x 2 sequences x 64 "
            "tokens, fp32, recompute full");
  EXPECT_EQ(layout.shards(), 2);
  EXPECT_EQ(layout.shard(2), 1);
  EXPECT_EQ(layout.shard(4), 0);
  EXPECT_TRUE(layout.sharded_parameters());
  EXPECT_TRUE(layout.transient_gradients());
  EXPECT_EQ(layout.recompute_of(0), arch::Recompute::kNone);
  EXPECT_EQ(layout.recompute_of(2), arch::Recompute::kFull);
  const Layout reference = reference_layout(layout);
  EXPECT_EQ(describe(reference), "1 rank, 16 microbatches x 2 sequences x 64 tokens, fp32");
  EXPECT_FALSE(reference.transient_gradients());
}

TEST(ShardingTextTest, FoldedFormNamesTheFirstAndTheLastRound) {
  const Layout layout = sharded_layout(3, 6, 2, 4);
  const std::string text = program_text(build_program(layout), layout, 0, {.compact = true});
  EXPECT_THAT(text,
              testing::StartsWith(
                  "UNSHARD embed | UNSHARD b0 | (F embed m0, RESHARD embed, UNSHARD b1) .. (F b4 m0, RESHARD b4, "
                  "UNSHARD head) | F b5 m0 | RESHARD b5 | F head m0 | UNSHARD b5 | B head m0 | RESHARD head | "
                  "UNSHARD b4 | REDUCE_GRAD head m0 | (B b5 m0, RESHARD b5, UNSHARD b3, REDUCE_GRAD b5 m0, "
                  "SHARD_GRAD head m0) .. (B b2 m0, RESHARD b2, UNSHARD b0, REDUCE_GRAD b2 m0, SHARD_GRAD b3 m0)"));
  EXPECT_THAT(text, HasSubstr("m = 1..2 (F embed, RESHARD embed, UNSHARD b1, SHARD_GRAD embed m-1, (F b0, RESHARD b0, "
                              "UNSHARD b2) .. (F b4, RESHARD b4, UNSHARD head), F b5"));
  const Layout states = sharded_layout(1, 6, 2, 1);
  EXPECT_THAT(program_text(build_program(states), states, 0, {.compact = true}),
              testing::EndsWith("NORM | (STEP embed, UNSHARD embed) .. (STEP head, UNSHARD head)"));
}

// Wrapped, it says the same.
TEST(ShardingTextTest, LongRoundsAreWrapped) {
  const Layout layout = sharded_layout(3, 6, 2, 4);
  const Program program = build_program(layout);
  std::string text = program_text(program, layout, 0, {.width = 60, .indent = 2, .compact = true});
  for (const std::string& line : split(text, '\n')) EXPECT_LE(line.size(), 60u) << line;
  for (size_t at = 0; (at = text.find("\n  ", at)) != std::string::npos;) text.replace(at, 3, " ");
  EXPECT_EQ(text, program_text(program, layout, 0, {.compact = true}));
}

TEST(ShardingTextTest, GathersAreDrawnBesideTheLayerBefore) {
  const Layout layout = sharded_layout(3, 1, 2, 1);
  EXPECT_EQ(draw_program(build_program(layout), layout, 1),
            "rank 0 compute     Fe -e F0 -0 Fh Bh -h B0 -0 Sh Be S0 Se      NORM STEP\n"
            "       network  +e +0    +h       +0    Rh    R0    Re    LOSS\n"
            "(1 more ranks)\n");
  const Layout states = sharded_layout(1, 1, 2, 1, 2);
  EXPECT_EQ(draw_program(build_program(states), states, 1),
            "rank 0 compute  Fe F0 Fh Bh B0 Be                  NORM Ue U0 Uh\n"
            "       network              Rh R0 Ah Re A0 Ae LOSS         +e +0 +h\n(3 more ranks)\n");
}

TEST(ShardingTest, EveryLayoutIsSound) {
  std::mt19937 random(7);
  const auto one_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  for (int i = 0; i < 400; ++i) {
    const int shard = one_of(1, 2, 3, 4), replicate = one_of(1, 1, 2, 3), tp = one_of(1, 1, 2, 4);
    Layout layout = sharded_layout(one_of(1, 2, 3), one_of(1, 2, 3, 5), shard, one_of(1, 2, 4), replicate, tp,
                                   one_of("gpt2-test", "llama-test"));  // tied and not
    layout.prefetch = one_of(0, 1, 2, 3, 7);
    layout.prefetch_limit = one_of(0, 1000, 100000, 400000, 1 << 30);
    layout.reshard_after_forward = one_of(true, false);
    layout.reshard_after_microbatch = one_of(true, false);
    layout.overlap = one_of(true, false);
    layout.bucket_bytes = one_of(0, 100000, 1 << 30);
    layout.sequence_parallel = one_of(true, false);
    for (int64_t block = 0; block < layout.model.layers && one_of(true, false); ++block)
      layout.recompute = std::vector<arch::Recompute>(static_cast<size_t>(layout.model.layers),
                                                      one_of(arch::Recompute::kSelective, arch::Recompute::kFull));
    if (!layout.recompute.empty()) layout.recompute[0] = arch::Recompute::kNone;
    layout.offload.optimizer = one_of(true, false, false);
    layout.offload.parameters =
        layout.offload.optimizer && (layout.zero == 3 || shard * replicate == 1) && one_of(true, false);
    layout.offload.activations =
        one_of(true, false) && std::count(layout.recompute.begin(), layout.recompute.end(), arch::Recompute::kFull) > 0;
    if (one_of(true, false)) layout.precision = config::Precision::kBf16;
    layout.row_groups = one_of(true, false);
    EXPECT_THAT(verify(build_program(layout), layout), IsEmpty()) << describe(layout);
  }
}

}  // namespace
}  // namespace lockstep::program
