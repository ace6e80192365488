// Programs of ZeRO, FSDP and HSDP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/base/text.h"
#include "lockstep/program/passes.h"
#include "lockstep/program/render.h"
#include "lockstep/program/verify.h"

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
    if (one_of(true, false)) layout.precision = config::Precision::kBf16;
    EXPECT_THAT(verify(build_program(layout), layout), IsEmpty()) << describe(layout);
  }
}

}  // namespace
}  // namespace lockstep::program
