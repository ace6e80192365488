// Layouts over cp: groups, the calls of layers written out by hand, and what lies on a rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/program/layout.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::program {
namespace {

using config::ContextKind;
using mesh::Axis;
using testing::ElementsAre;
using testing::IsEmpty;

struct Degrees {
  int replicate = 1, shard = 1, cp = 1, tp = 1, zero = 0;
};

// 3 sequences a microbatch; "llama-test" has 12 heads of width 4, 4 of keys and values, "deepseek-test" 8.
Layout layout_of(const Degrees& of, ContextKind kind = ContextKind::kRing, int inner = 1, const char* preset = "llama-test") {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[Axis::kDpReplicate] = of.replicate;
  degrees[Axis::kDpShard] = of.shard;
  degrees[Axis::kCp] = of.cp;
  degrees[Axis::kTp] = of.tp;
  Layout layout{.model = arch::resolve_model({.preset = preset}), .mesh = mesh::Mesh(degrees)};
  layout.micro_batch = 3;
  layout.global_batch = int64_t{3} * of.replicate * of.shard;
  layout.seq_len = 48;
  layout.zero = of.zero;
  layout.context = kind;
  layout.context_inner = inner;
  return layout;
}

std::vector<std::string> names_of_groups(const Layout& layout, int rank) {
  std::vector<std::string> names;
  for (const GroupRef& group : groups_of(layout, rank)) names.push_back(group_name(layout, group));
  return names;
}

TEST(ContextGroups, HaveTheirOwnChannel) {
  EXPECT_THAT(names_of_groups(layout_of({.cp = 2}), 0), ElementsAre("cp", "cp", "world"));
  EXPECT_THAT(names_of_groups(layout_of({.replicate = 2, .cp = 2}), 0), ElementsAre("dp_cp", "cp", "world"));
  EXPECT_THAT(names_of_groups(layout_of({.shard = 2, .cp = 2, .tp = 2, .zero = 1}), 0), ElementsAre("dp_cp", "tp", "cp", "replica", "world"));
  EXPECT_THAT(names_of_groups(layout_of({.cp = 4}, ContextKind::k2d, 2), 0), ElementsAre("cp", "cp", "cp_inner", "cp_outer", "world"));
}

// inner varies fastest.
TEST(ContextGroups, OfTwoDAreNeighboursAndRingsAcrossThem) {
  const Layout layout = layout_of({.replicate = 2, .cp = 6, .tp = 2}, ContextKind::k2d, 2);  // rank = 12 dp + 2 cp + tp
  const auto ranks = [&](const mesh::View& view) { return group_ranks(layout, 17, group_over(layout, view, Channel::kContext)); };
  EXPECT_THAT(ranks(Axis::kCp), ElementsAre(13, 15, 17, 19, 21, 23));
  EXPECT_THAT(ranks(layout.context_inner_ranks()), ElementsAre(17, 19));
  EXPECT_THAT(ranks(layout.context_outer_ranks()), ElementsAre(13, 17, 21));
}

TEST(ContextGroups, AreMadeInOneOrderEverywhere) {
  const Layout layout = layout_of({.replicate = 2, .cp = 4, .tp = 2, .zero = 1}, ContextKind::k2d, 2);
  using Made = std::pair<GroupRef, std::vector<int>>;
  std::vector<std::vector<Made>> made(static_cast<size_t>(layout.mesh.world_size()));
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank)
    for (const GroupRef& group : groups_of(layout, rank)) made[static_cast<size_t>(rank)].emplace_back(group, group_ranks(layout, rank, group));
  const auto with = [&](size_t rank, size_t other) {
    std::vector<Made> both;
    std::ranges::copy_if(made[rank], std::back_inserter(both),
                         [&](const Made& one) { return std::ranges::count(one.second, static_cast<int>(other)) > 0; });
    return both;
  };
  for (size_t a = 0; a < made.size(); ++a)
    for (size_t b = 0; b < a; ++b) EXPECT_EQ(with(a, b), with(b, a)) << "ranks " << a << " and " << b;
}

TEST(ContextGroups, AreNamedByWhatTheySpan) {
  const auto name = [](const Layout& layout, const mesh::View& view) { return group_name(layout, group_over(layout, view)); };
  const Layout both = layout_of({.replicate = 2, .shard = 2, .cp = 2, .tp = 2, .zero = 1});
  EXPECT_EQ(name(both, both.tokens()), "dp_cp");
  EXPECT_EQ(name(both, Axis::kDpShard | Axis::kCp), "dp_shard_cp");
  EXPECT_EQ(name(both, Axis::kCp | Axis::kTp), "cp_tp");
  EXPECT_EQ(name(both, Axis::kDpShard | Axis::kCp | Axis::kTp), "dp_shard_cp_tp");
  EXPECT_EQ(name(both, both.all_ranks()), "replica");
}

// A rank has T = 48 / cp tokens of each of 3 sequences, M of all.
using Row = std::tuple<std::string, std::string, Collective, int64_t, int64_t>;
std::vector<Row> calls(const Layout& layout, ActionKind kind, int layer = 1) {
  std::vector<Row> rows;
  for (const PlannedCall& call : tensor_calls(layout, {.kind = kind, .layer = layer, .microbatch = 0})) {
    EXPECT_EQ(call.algorithm == Algorithm::kDirect, true) << call_text(call.id);
    rows.emplace_back(call_text(call.id), group_name(layout, call.group), call.collective, call.numel, call.element_size);
  }
  return rows;
}

constexpr int64_t kWidth = 4, kHeads = 12, kKeys = 4;

TEST(ContextCalls, OfARing) {
  const int64_t block = 3 * 16 * kKeys * 2 * kWidth;
  const Row forward{"blocks.0.attention.ring forward", "cp", Collective::kShift, block, 4};
  const Row again{"blocks.0.attention.ring gather", "cp", Collective::kShift, block, 4};
  const Row backward{"blocks.0.attention.ring backward", "cp", Collective::kShift, block, 4};
  Layout layout = layout_of({.cp = 3});
  EXPECT_THAT(calls(layout, ActionKind::kForward), ElementsAre(forward, forward));
  EXPECT_THAT(calls(layout, ActionKind::kBackward), ElementsAre(again, backward, again, backward, backward));
  EXPECT_EQ(calls(layout, ActionKind::kBackwardInput), calls(layout, ActionKind::kBackward));
  EXPECT_THAT(calls(layout, ActionKind::kBackwardWeight), IsEmpty());
  EXPECT_THAT(calls(layout, ActionKind::kForward, 0), IsEmpty());
  EXPECT_THAT(calls(layout, ActionKind::kBackward, 4), IsEmpty()) << "the head is local to tokens";
  layout.recompute = {arch::Recompute::kFull, arch::Recompute::kSelective, arch::Recompute::kNone};
  EXPECT_EQ(calls(layout, ActionKind::kRecompute), calls(layout, ActionKind::kForward));
  EXPECT_THAT(calls(layout, ActionKind::kRecompute, 2), IsEmpty()) << "attention is kept";
  // In bf16 gradients travel in fp32.
  layout.precision = config::Precision::kBf16;
  EXPECT_EQ(std::get<4>(calls(layout, ActionKind::kBackward)[0]), 2);
  EXPECT_EQ(std::get<4>(calls(layout, ActionKind::kBackward)[1]), 4);
}

// A window no longer than a piece: its ends alone, forth and back. A longer one: of a contiguous split only as far as it reaches, and
// gradients come home all the way.
TEST(ContextCalls, OfARingStopWithTheWindow) {
  const auto names = [](int64_t window, config::ContextSplit split, ActionKind kind) {
    Layout layout = layout_of({.cp = 4});  // 12 tokens a rank
    layout.model.sliding_window = window;
    layout.context_split = split;
    std::vector<std::string> phases;
    for (const Row& row : calls(layout, kind)) phases.push_back(std::get<0>(row).substr(std::string("blocks.0.attention.ring ").size()));
    return phases;
  };
  const auto parts = config::ContextSplit::kContiguous, pairs = config::ContextSplit::kZigzag;
  EXPECT_THAT(names(1, parts, ActionKind::kForward), IsEmpty());
  EXPECT_THAT(names(1, parts, ActionKind::kBackward), IsEmpty());
  EXPECT_THAT(names(13, parts, ActionKind::kForward), ElementsAre("forward"));
  EXPECT_THAT(names(14, parts, ActionKind::kForward), ElementsAre("forward", "forward"));
  EXPECT_THAT(names(14, parts, ActionKind::kBackward), ElementsAre("gather", "backward", "gather", "backward", "backward", "backward"));
  EXPECT_THAT(names(13, parts, ActionKind::kBackward), ElementsAre("gather", "backward"));
  EXPECT_THAT(names(7, pairs, ActionKind::kForward), ElementsAre("forward", "forward"));
  EXPECT_THAT(names(7, pairs, ActionKind::kBackward), ElementsAre("gather", "gather", "backward", "backward"));
  EXPECT_THAT(names(8, pairs, ActionKind::kForward), ElementsAre("forward", "forward", "forward"));
  EXPECT_THAT(names(100, parts, ActionKind::kForward), ElementsAre("forward", "forward", "forward"));
  EXPECT_THAT(names(14, pairs, ActionKind::kForward), ElementsAre("forward", "forward", "forward"));
}

TEST(ContextCalls, OfTheEndsOfAWindow) {
  Layout layout = layout_of({.cp = 4});  // pieces of 6 tokens
  layout.model.sliding_window = 5;
  const int64_t end = 3 * 4 * kKeys * 2 * kWidth;
  const auto row = [&](const char* phase, Collective collective) {
    return Row{std::string("blocks.0.attention.ring ") + phase, "cp", collective, end, 4};
  };
  EXPECT_THAT(calls(layout, ActionKind::kForward), ElementsAre(row("forward", Collective::kShift), row("forward", Collective::kShiftBack)));
  EXPECT_THAT(calls(layout, ActionKind::kBackward),
              ElementsAre(row("gather", Collective::kShift), row("gather", Collective::kShiftBack), row("backward", Collective::kShiftBack),
                          row("backward", Collective::kShift)));
  layout.document_mask = true;  // zigzag follows documents, whose pieces are not equal
  EXPECT_EQ(calls(layout, ActionKind::kForward).size(), 3u);
  layout.context_split = config::ContextSplit::kContiguous;
  EXPECT_THAT(calls(layout, ActionKind::kForward), ElementsAre(row("forward", Collective::kShift)));
}

TEST(ContextCalls, OfLatentAttentionInARingTheLatentTravels) {
  const Layout layout = layout_of({.cp = 2}, ContextKind::kRing, 1, "deepseek-test");
  const Row forward{"blocks.0.attention.ring forward", "cp", Collective::kShift, 3 * 24 * (20 + 4), 4};
  EXPECT_THAT(calls(layout, ActionKind::kForward), ElementsAre(forward));
  const Layout gathered = layout_of({.cp = 2}, ContextKind::kAllGather, 1, "deepseek-test");
  EXPECT_EQ(std::get<3>(calls(gathered, ActionKind::kForward)[0]), 2 * 3 * 24 * 8 * (16 + 8));
}

TEST(ContextCalls, OfAGather) {
  const int64_t all = 3 * 3 * 16 * kKeys * 2 * kWidth;
  Layout layout = layout_of({.cp = 3}, ContextKind::kAllGather);
  layout.precision = config::Precision::kBf16;
  EXPECT_THAT(calls(layout, ActionKind::kForward), ElementsAre(Row{"blocks.0.attention.gather forward", "cp", Collective::kAllGather, all, 2}));
  EXPECT_THAT(calls(layout, ActionKind::kBackward),
              ElementsAre(Row{"blocks.0.attention.gather gather", "cp", Collective::kAllGather, all, 2},
                          Row{"blocks.0.attention.gather backward", "cp", Collective::kReduceScatter, all, 4}));
}

// Where cp exceeds the key heads, or does not divide the heads, each rank gets as many as the one that needs most.
TEST(ContextCalls, OfHeadsForTokens) {
  struct Case {
    int cp;
    int64_t queries, keys;
  };
  for (const auto& [cp, queries, keys] : {Case{2, 6, 2}, Case{4, 3, 1}, Case{8, 2, 2}, Case{3, 4, 2}, Case{12, 1, 1}}) {
    const Layout layout = layout_of({.cp = cp}, ContextKind::kAllToAll);
    const int64_t rows = cp * 3 * (48 / cp), taken = rows * (queries * kWidth + keys * 2 * kWidth), given = rows * queries * kWidth;
    EXPECT_THAT(calls(layout, ActionKind::kForward),
                ElementsAre(Row{"blocks.0.attention.heads forward", "cp", Collective::kAllToAll, taken, 4},
                            Row{"blocks.0.attention.heads gather", "cp", Collective::kAllToAll, given, 4}))
        << "cp " << cp;
    EXPECT_THAT(calls(layout, ActionKind::kBackward),
                ElementsAre(Row{"blocks.0.attention.heads backward", "cp", Collective::kAllToAll, given, 4},
                            Row{"blocks.0.attention.heads backward", "cp", Collective::kAllToAll, taken, 4}))
        << "cp " << cp;
  }
}

TEST(ContextCalls, OfBoth) {
  const Layout layout = layout_of({.cp = 4}, ContextKind::k2d, 2);
  const int64_t rows = 2 * 3 * 12, queries = kHeads / 2, keys = kKeys / 2;
  const int64_t taken = rows * (queries * kWidth + keys * 2 * kWidth), given = rows * queries * kWidth, block = rows * keys * 2 * kWidth;
  const std::string at = "blocks.0.attention.";
  EXPECT_THAT(calls(layout, ActionKind::kForward),
              ElementsAre(Row{at + "heads forward", "cp_inner", Collective::kAllToAll, taken, 4},
                          Row{at + "ring forward", "cp_outer", Collective::kShift, block, 4},
                          Row{at + "heads gather", "cp_inner", Collective::kAllToAll, given, 4}));
  EXPECT_THAT(calls(layout, ActionKind::kBackward),
              ElementsAre(Row{at + "heads backward", "cp_inner", Collective::kAllToAll, given, 4},
                          Row{at + "ring gather", "cp_outer", Collective::kShift, block, 4},
                          Row{at + "ring backward", "cp_outer", Collective::kShift, block, 4},
                          Row{at + "ring backward", "cp_outer", Collective::kShift, block, 4},
                          Row{at + "heads backward", "cp_inner", Collective::kAllToAll, taken, 4}));
}

// Inside the linears: heads are this rank's of tp, rows those of the tokens here.
TEST(ContextCalls, BesideTensorParallelism) {
  const Layout layout = layout_of({.cp = 2, .tp = 2});
  const int64_t rows = 3 * 24, block = rows * (kKeys / 2) * 2 * kWidth;
  const std::string at = "blocks.0.attention.";
  const std::vector<Row> forward = calls(layout, ActionKind::kForward);
  EXPECT_THAT(std::vector(forward.begin(), forward.begin() + 3),
              ElementsAre(Row{at + "qkv forward", "tp", Collective::kAllGather, rows * 48, 4}, Row{at + "ring forward", "cp", Collective::kShift, block, 4},
                          Row{at + "out forward", "tp", Collective::kReduceScatter, rows * 48, 4}));
}

TEST(ContextCalls, StagesHandOverTheTokensHere) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[Axis::kPp] = 2;
  degrees[Axis::kCp] = 4;
  Layout layout = layout_of({});
  layout.mesh = mesh::Mesh(degrees);
  layout.pipeline.ranks = 2;
  layout.pipeline.first_layer = stages_of_blocks({1, 2});
  layout.seq_len = 45;  // 8 pieces of 6 tokens
  EXPECT_EQ(layout.tokens_here(), 12);
  const Program none;
  const std::vector<PlannedCall> sent = planned_calls(layout, none, 0, {.kind = ActionKind::kSendForward, .stage = 0, .microbatch = 0});
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].numel, 3 * 12 * 48);
  EXPECT_EQ(microbatch_samples(layout, 3, 0).begin, 0) << "all ranks of cp have the same sequences";
}

// The twin has whole sequences, and knows of documents.
TEST(ContextLayout, OfTheTwin) {
  Layout layout = layout_of({.replicate = 2, .cp = 2}, ContextKind::kAllGather);
  layout.document_mask = layout.reset_positions = true;
  const Layout twin = reference_layout(layout);
  EXPECT_EQ(twin.context_shard().ranks, 1);
  EXPECT_EQ(twin.tokens_here(), 48);
  EXPECT_TRUE(twin.has_places());
  EXPECT_EQ(twin.global_batch, layout.global_batch);
}

TEST(ContextLayout, EveryRankOfCpCountsOnceInTheNorm) {
  for (const int zero : {0, 1}) {
    const Layout layout = layout_of({.replicate = 2, .cp = 2, .zero = zero});
    EXPECT_EQ(layout.norm_over_all_ranks(), zero == 1);
    int counted = 0;
    for (int rank = 0; rank < 4; ++rank) counted += layout.counts_in_norm(rank, arch::ParameterGroup::kDense) ? 1 : 0;
    EXPECT_EQ(counted, zero == 1 ? 2 : 4) << "of each shard one; alone each rank has all squares";
  }
}

}  // namespace
}  // namespace lockstep::program
