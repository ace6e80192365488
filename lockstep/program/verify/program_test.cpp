#include "lockstep/program/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using config::DataParallel;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// `blocks` layers between embedding and head, `dp` ranks, `microbatches` each, every layer its own bucket.
Layout small_layout(int blocks, int dp, int microbatches, DataParallel kind = DataParallel::kRing) {
  config::ModelSection section{.preset = "gpt2-test"};
  section.layers = blocks;
  return {.model = arch::resolve_model(section),
          .mesh = mesh::Mesh::data_parallel(dp),
          .global_batch = 2 * dp * microbatches,
          .micro_batch = 2,
          .seq_len = 16,
          .data_parallel = kind,
          .bucket_bytes = 0};
}

std::string text_of(const Layout& layout, int rank = 0) {
  return program_text(build_program(layout), layout, rank);
}

TEST(ProgramTest, RingReducesEachBucketBehindTheLastBackwardThatFillsIt) {
  const std::string expected =
      "F embed m0 | F b0 m0 | F head m0 | B head m0 | B b0 m0 | B embed m0 | "
      "F embed m1 | F b0 m1 | F head m1 | B head m1 | REDUCE_GRAD head | B b0 m1 | REDUCE_GRAD b0 | "
      "B embed m1 | REDUCE_GRAD embed | LOSS | NORM | STEP";
  EXPECT_EQ(text_of(small_layout(1, 2, 2), 0), expected);
  EXPECT_EQ(text_of(small_layout(1, 2, 2), 1), expected);
}

TEST(ProgramTest, WithoutOverlapAllReductionsComeAtTheEnd) {
  Layout layout = small_layout(1, 2, 1);
  layout.overlap = false;
  EXPECT_EQ(text_of(layout),
            "F embed m0 | F b0 m0 | F head m0 | B head m0 | B b0 m0 | B embed m0 | "
            "REDUCE_GRAD head | REDUCE_GRAD b0 | REDUCE_GRAD embed | LOSS | NORM | STEP");
}

TEST(ProgramTest, OneRankCommunicatesNothing) {
  const std::string expected =
      "F embed m0 | F b0 m0 | F head m0 | B head m0 | B b0 m0 | B embed m0 | LOSS | NORM | STEP";
  EXPECT_EQ(text_of(small_layout(1, 1, 1)), expected);
  EXPECT_EQ(text_of(small_layout(1, 1, 1, DataParallel::kParameterServer)), expected);
}

TEST(ProgramTest, OnlyTheServerSteps) {
  const Layout layout = small_layout(1, 3, 1, DataParallel::kParameterServer);
  const std::string backward =
      "F embed m0 | F b0 m0 | F head m0 | B head m0 | PUSH head | B b0 m0 | PUSH b0 | B embed m0 | PUSH embed | "
      "LOSS | NORM | ";
  EXPECT_EQ(text_of(layout, 0), backward + "STEP | PULL head | PULL b0 | PULL embed");
  EXPECT_EQ(text_of(layout, 2), backward + "PULL head | PULL b0 | PULL embed");
}

TEST(ProgramTest, BucketsCloseOnceTheyAreFull) {
  Layout layout = small_layout(3, 2, 1);
  const Program alone = build_program(layout);
  EXPECT_EQ(alone.buckets.size(), 5u);
  layout.bucket_bytes = (alone.buckets[0].numel() + alone.buckets[1].numel() + 1) * 4;  // head and more than one block
  const Program program = build_program(layout);
  ASSERT_EQ(program.buckets.size(), 2u);
  EXPECT_THAT(program.buckets[0].units, ElementsAre(4, 3, 2));
  EXPECT_THAT(program.buckets[1].units, ElementsAre(1, 0));
  EXPECT_THAT(program_text(program, layout, 0), HasSubstr("B b1 m0 | REDUCE_GRAD head..b1 | B b0 m0"));
  layout.bucket_bytes = int64_t{1} << 40;
  EXPECT_EQ(build_program(layout).buckets.size(), 1u);
}

TEST(ProgramTest, ATiedParameterIsCompleteOnlyAfterEveryUser) {
  Bucket embedding{.units = {0}, .begin = 0, .end = 1};
  EXPECT_THAT(writers(embedding, arch::param_table(small_layout(2, 1, 1).model)), ElementsAre(0, 3));
  // Were the weight owned by the head, its bucket would wait for the embedding, the last to run backward.
  std::vector<arch::ParamSpec> table(1);
  table[0].layer = table[0].unit = 3;
  table[0].tied_layers = {0};
  EXPECT_THAT(writers({.units = {3}, .begin = 0, .end = 1}, table), ElementsAre(0, 3));
}

TEST(ProgramTest, EveryLayoutIsSound) {
  for (DataParallel kind : {DataParallel::kRing, DataParallel::kParameterServer}) {
    for (int dp : {1, 2, 3, 4, 8}) {
      for (int microbatches : {1, 2, 5}) {
        for (int64_t bucket_bytes : {int64_t{0}, int64_t{100000}, int64_t{1} << 30}) {
          for (bool overlap : {true, false}) {
            Layout layout = small_layout(4, dp, microbatches, kind);
            layout.bucket_bytes = bucket_bytes;
            layout.overlap = overlap;
            EXPECT_THAT(verify(build_program(layout), layout), IsEmpty());
          }
        }
      }
    }
  }
}

TEST(ProgramTextTest, CompactFormNamesRunsOnce) {
  const Layout layout = small_layout(4, 1, 3);
  const Program program = build_program(layout);
  EXPECT_EQ(program_text(program, layout, 0, {.compact = true}),
            "m0..m2 (F embed..head, B head..embed) | LOSS | NORM | STEP");
  const Layout two = small_layout(4, 2, 3);
  EXPECT_EQ(program_text(build_program(two), two, 1, {.compact = true}),
            "m0..m1 (F embed..head, B head..embed) | F embed..head m2 | (B, REDUCE_GRAD) of each of head..embed m2 | "
            "LOSS | NORM | STEP");
  Layout server = small_layout(4, 2, 1, DataParallel::kParameterServer);
  server.overlap = false;
  EXPECT_EQ(program_text(build_program(server), server, 1, {.compact = true}),
            "F embed..head m0 | B head..embed m0 | PUSH head | PUSH b3 | PUSH b2 | PUSH b1 | PUSH b0 | PUSH embed | "
            "LOSS | NORM | PULL of buckets 0..5");
}

TEST(ProgramTextTest, WrapsBetweenActions) {
  const Layout layout = small_layout(1, 1, 1);
  EXPECT_EQ(program_text(build_program(layout), layout, 0, {.width = 40, .indent = 4}),
            "F embed m0 | F b0 m0 | F head m0 |\n"
            "    B head m0 | B b0 m0 | B embed m0 |\n"
            "    LOSS | NORM | STEP");
}

// The same over tp: kv_heads 0 = as many as heads.
Layout tensor_layout(int tp, int dp = 1, DataParallel kind = DataParallel::kRing, int64_t kv_heads = 0) {
  config::ModelSection section{.preset = "llama-test"};
  section.layers = 1;
  if (kv_heads > 0) section.kv_heads = kv_heads;
  Layout layout = small_layout(1, dp, 1, kind);
  layout.model = arch::resolve_model(section);
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kDpReplicate] = dp;
  degrees[mesh::Axis::kTp] = tp;
  layout.mesh = mesh::Mesh(degrees);
  return layout;
}

TEST(TensorProgramTest, PartialGradientsAreSummedOnceBehindAllReductions) {
  const std::string layers = "F embed m0 | F b0 m0 | F head m0 | B head m0 | B b0 m0 | B embed m0 | ";
  for (int rank : {0, 1}) EXPECT_EQ(text_of(tensor_layout(2), rank), layers + "LOSS | REDUCE_PARTIAL | NORM | STEP");
  EXPECT_EQ(text_of(tensor_layout(2, 2), 3),
            "F embed m0 | F b0 m0 | F head m0 | B head m0 | REDUCE_GRAD head | B b0 m0 | REDUCE_GRAD b0 | B embed m0 | "
            "REDUCE_GRAD embed | LOSS | REDUCE_PARTIAL | NORM | STEP");
}

// Norms and output biases of a layer have a bucket of their own, over tp too; what is left of an embedding is summed at the end.
TEST(TensorProgramTest, RowGroupsAreReducedByThemselves) {
  Layout layout = tensor_layout(2);
  layout.row_groups = true;
  const std::string text = text_of(layout);
  EXPECT_THAT(text, HasSubstr("B head m0 | REDUCE_GRAD head rows | B b0 m0 | REDUCE_GRAD b0 rows | B embed m0 | LOSS"));
  layout = tensor_layout(2, 2);
  layout.row_groups = true;
  EXPECT_THAT(text_of(layout), HasSubstr("B b0 m0 | REDUCE_GRAD b0 rows | REDUCE_GRAD b0 | B embed m0 | REDUCE_GRAD embed | LOSS"));
  layout = tensor_layout(2, 2, DataParallel::kParameterServer);
  const std::string server = text_of(layout);
  layout.row_groups = true;
  EXPECT_EQ(text_of(layout), server) << "a server sums over other samples alone";
}

// A bucket of two groups, and one group that is reduced over the ranks of another.
TEST(TensorProgramTest, GroupsAreNotMixed) {
  Layout layout = tensor_layout(2, 2);
  layout.row_groups = true;
  Program program = build_program(layout);
  const auto rows = std::ranges::find_if(program.buckets, [&](const Bucket& bucket) {
    return layout.group_of(bucket.units.front()) == arch::ParameterGroup::kRows;
  });
  ASSERT_NE(rows, program.buckets.end());
  rows->units.push_back(0);
  EXPECT_THAT(verify(program, layout), Contains(HasSubstr("lies in a bucket of another group")));
}

// Nothing is a part of a sum, but for key/value heads that ranks share.
TEST(TensorProgramTest, WithoutSequenceParallelismOnlySharedHeadsAreSummed) {
  Layout layout = tensor_layout(2);
  layout.sequence_parallel = false;
  EXPECT_THAT(text_of(layout), HasSubstr("LOSS | NORM | STEP"));
  layout = tensor_layout(4, 1, DataParallel::kRing, 2);
  layout.sequence_parallel = false;
  EXPECT_THAT(text_of(layout), HasSubstr("LOSS | REDUCE_PARTIAL | NORM | STEP"));
}

TEST(TensorProgramTest, OnlyTheServersGroupSumsAndSteps) {
  const Layout layout = tensor_layout(2, 2, DataParallel::kParameterServer);
  for (int rank : {0, 1}) EXPECT_THAT(text_of(layout, rank), HasSubstr("LOSS | REDUCE_PARTIAL | NORM | STEP | PULL"));
  for (int rank : {2, 3}) EXPECT_THAT(text_of(layout, rank), HasSubstr("LOSS | NORM | PULL"));
}

TEST(TensorProgramTest, EveryLayoutIsSound) {
  for (DataParallel kind : {DataParallel::kRing, DataParallel::kParameterServer})
    for (int tp : {2, 4})
      for (int dp : {1, 2, 3})
        for (int64_t kv_heads : {1, 2, 4})
          for (bool sequence : {true, false}) {
            Layout layout = tensor_layout(tp, dp, kind, kv_heads);
            layout.sequence_parallel = sequence;
            EXPECT_THAT(verify(build_program(layout), layout), IsEmpty());
            layout.row_groups = true;
            EXPECT_THAT(verify(build_program(layout), layout), IsEmpty());
          }
}

// A broken program, and the rule that must name it.
struct Mutant {
  const char* rule;
  const char* what;
  DataParallel kind;
  void (*breaks)(Program&);
};

size_t find(const std::vector<Action>& actions, ActionKind kind, int layer = -1, int microbatch = -1) {
  for (size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == kind && actions[i].layer == layer &&
        (microbatch < 0 || actions[i].microbatch == microbatch)) {
      return i;
    }
  }
  throw std::runtime_error("no such action");
}
std::vector<Action>& rank(Program& program, int r) {
  return own_list(program, r);
}
void erase(std::vector<Action>& actions, size_t i) {
  actions.erase(actions.begin() + static_cast<int64_t>(i));
}
void move(std::vector<Action>& actions, size_t from, size_t to) {
  const Action action = actions[from];
  erase(actions, from);
  actions.insert(actions.begin() + static_cast<int64_t>(to), action);
}

constexpr auto kRing = DataParallel::kRing;
constexpr auto kServer = DataParallel::kParameterServer;
using K = ActionKind;
const Mutant kMutants[] = {
    {"ranks", "a rank without a list", kRing, [](Program& p) { p.list_of.pop_back(); }},
    {"ranks", "a microbatch that does not exist", kRing, [](Program& p) { rank(p, 0)[0].microbatch = 7; }},
    {"ranks", "a bucket that does not exist", kRing,
     [](Program& p) { rank(p, 0)[find(rank(p, 0), K::kReduceGrad)].bucket = 9; }},
    {"once", "a forward too many", kRing, [](Program& p) { rank(p, 1).insert(rank(p, 1).begin(), rank(p, 1)[0]); }},
    {"once", "a backward forgotten", kRing,
     [](Program& p) { erase(rank(p, 0), find(rank(p, 0), K::kBackward, 1, 0)); }},
    {"free", "I without W", kRing,
     [](Program& p) { rank(p, 0)[find(rank(p, 0), K::kBackward, 1, 0)].kind = K::kBackwardInput; }},
    {"order", "backward before forward", kRing,
     [](Program& p) { std::swap(rank(p, 0)[find(rank(p, 0), K::kForward, 2, 0)].kind, rank(p, 0)[3].kind); }},
    {"order", "forward against the order of layers", kRing,
     [](Program& p) { std::swap(rank(p, 0)[0], rank(p, 0)[1]); }},
    {"order", "backward against the order of layers", kRing,
     [](Program& p) { std::swap(rank(p, 0)[4], rank(p, 0)[5]); }},
    {"buckets", "a range that is not that of its layers", kRing, [](Program& p) { p.buckets[0].end -= 1; }},
    {"buckets", "a layer in no bucket", kRing, [](Program& p) { p.buckets.pop_back(); }},
    {"life", "a bucket not reduced", kRing, [](Program& p) { erase(rank(p, 0), find(rank(p, 0), K::kReduceGrad)); }},
    {"life", "a bucket reduced twice", kRing,
     [](Program& p) {
       const size_t i = find(rank(p, 0), K::kReduceGrad);
       rank(p, 0).insert(rank(p, 0).begin() + static_cast<int64_t>(i), rank(p, 0)[i]);
     }},
    {"reduce", "pushed in a ring", kRing,
     [](Program& p) { rank(p, 0)[find(rank(p, 0), K::kReduceGrad)].kind = K::kPush; }},
    {"life", "reduced before the last microbatch", kRing,
     [](Program& p) { move(rank(p, 0), find(rank(p, 0), K::kReduceGrad), 6); }},
    {"life", "pushed before its backward", kServer,
     [](Program& p) { move(rank(p, 1), find(rank(p, 1), K::kPush), find(rank(p, 1), K::kBackward, 2, 1)); }},
    {"life", "no norm", kRing, [](Program& p) { erase(rank(p, 1), find(rank(p, 1), K::kNorm)); }},
    {"life", "a worker steps", kServer, [](Program& p) { rank(p, 1).push_back({.kind = K::kStep}); }},
    {"life", "step before norm", kRing,
     [](Program& p) { move(rank(p, 0), find(rank(p, 0), K::kStep), find(rank(p, 0), K::kNorm)); }},
    {"update", "norm before loss", kRing,
     [](Program& p) { move(rank(p, 0), find(rank(p, 0), K::kNorm), find(rank(p, 0), K::kLoss)); }},
    {"life", "reduced after norm", kRing,
     [](Program& p) { move(rank(p, 0), find(rank(p, 0), K::kNorm), find(rank(p, 0), K::kBackward, 0, 1) + 1); }},
    {"deadlock", "a bucket not pulled", kServer, [](Program& p) { rank(p, 1).pop_back(); }},
    {"life", "pulled before the step", kServer,
     [](Program& p) { move(rank(p, 0), find(rank(p, 0), K::kStep), rank(p, 0).size() - 1); }},
    {"update", "forward after the step", kRing, [](Program& p) { move(rank(p, 0), 0, rank(p, 0).size() - 1); }},
    {"deadlock", "buckets in another order on one rank", kRing,
     [](Program& p) {
       auto& actions = rank(p, 1);
       const size_t first = find(actions, K::kReduceGrad);
       move(actions, first, find(actions, K::kLoss) - 1);
     }},
};

TEST(VerifyTest, NamesWhatIsWrongWithEachMutant) {
  for (const Mutant& mutant : kMutants) {
    const Layout layout = small_layout(1, 2, 2, mutant.kind);
    Program program = build_program(layout);
    mutant.breaks(program);
    const std::string found = join(verify(program, layout), "\n");
    EXPECT_THAT(found, HasSubstr(cat("[", mutant.rule, "]"))) << mutant.what;
  }
}

const Mutant kTensorMutants[] = {
    {"life", "parts of a sum never summed", kRing,
     [](Program& p) { erase(rank(p, 0), find(rank(p, 0), K::kReducePartial)); }},
    {"life", "summed twice", kRing,
     [](Program& p) {
       const size_t i = find(rank(p, 3), K::kReducePartial);
       rank(p, 3).insert(rank(p, 3).begin() + static_cast<int64_t>(i), rank(p, 3)[i]);
     }},
    {"life", "summed after the norm", kRing,
     [](Program& p) { move(rank(p, 1), find(rank(p, 1), K::kReducePartial), find(rank(p, 1), K::kNorm)); }},
    {"life", "summed before the last reduction over dp", kRing,
     [](Program& p) { move(rank(p, 2), find(rank(p, 2), K::kReducePartial), find(rank(p, 2), K::kLoss) - 1); }},
    {"life", "summed before the last backward", kRing,
     [](Program& p) { move(rank(p, 2), find(rank(p, 2), K::kReducePartial), find(rank(p, 2), K::kBackward, 0)); }},
    {"life", "a worker sums", kServer,
     [](Program& p) { rank(p, 2).insert(rank(p, 2).end() - 4, {.kind = K::kReducePartial}); }},
    {"life", "the server does not sum", kServer,
     [](Program& p) { erase(rank(p, 1), find(rank(p, 1), K::kReducePartial)); }},
    // Both replicas alike, so that each data group agrees.
    {"deadlock", "ranks of a tp group run their layers in another order", kRing,
     [](Program& p) {
       for (int r : {1, 3}) std::swap(rank(p, r)[1], rank(p, r)[2]);
     }},
    {"deadlock", "one rank of a tp group reduces later", kRing,
     [](Program& p) {
       for (int r : {0, 2}) move(rank(p, r), find(rank(p, r), K::kReduceGrad), find(rank(p, r), K::kReduceGrad) + 1);
     }},
};

TEST(TensorProgramTest, VerifyNamesWhatIsWrongWithEachMutant) {
  for (const Mutant& mutant : kTensorMutants) {
    const Layout layout = tensor_layout(2, 2, mutant.kind);
    Program program = build_program(layout);
    ASSERT_THAT(verify(program, layout), IsEmpty());
    mutant.breaks(program);
    EXPECT_THAT(join(verify(program, layout), "\n"), HasSubstr(cat("[", mutant.rule, "]"))) << mutant.what;
  }
}

TEST(LayoutTest, RanksTakeContiguousPartsOfTheGlobalBatchInOrder) {
  const Layout layout = small_layout(1, 3, 4);
  int64_t next = 0;
  for (int rank = 0; rank < 3; ++rank) {
    for (int microbatch = 0; microbatch < 4; ++microbatch) {
      const mesh::Range range = microbatch_samples(layout, rank, microbatch);
      EXPECT_EQ(range.begin, next);
      EXPECT_EQ(range.end, next + 2);
      next = range.end;
    }
  }
  EXPECT_EQ(next, layout.global_batch);
}

TEST(LayoutTest, MadeFromTheConfiguration) {
  config::RunConfig config;
  config.model.preset = "gpt2-test";
  config.train.global_batch = 16;
  config.train.micro_batch = 4;
  config.train.seq_len = 64;
  config.parallel.bucket_mib = 0.5;
  const Layout layout = make_layout(config, arch::resolve_model(config.model), 2);
  EXPECT_EQ(describe(layout), "dp 2 (ring), 2 microbatches x 4 sequences x 64 tokens, fp32");
  EXPECT_EQ(layout.bucket_bytes, 524288);
  EXPECT_EQ(describe(reference_layout(layout)), "1 rank, 4 microbatches x 4 sequences x 64 tokens, fp32");
}

TEST(LayoutTest, RefusesWhatDoesNotFitAllAtOnce) {
  config::RunConfig config;
  config.model.preset = "gpt2-test";
  config.train.global_batch = 10;
  config.train.micro_batch = 4;
  config.train.seq_len = 65;
  try {
    make_layout(config, arch::resolve_model(config.model), 2);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().code, "LS1101");
    EXPECT_THAT(error.message().what, HasSubstr("global_batch(10) is not a multiple of dp(2) * micro_batch(4) = 8"));
    EXPECT_THAT(error.message().what, HasSubstr("seq_len(65) > model.max_seq_len(64)"));
  }
}

}  // namespace
}  // namespace lockstep::program
