// Calls of single actions, by hand; those of whole steps are held against what was recorded by the engine's tests.
#include "lockstep/program/planned_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

namespace lockstep::program {
namespace {

using mesh::Axis;
using testing::ElementsAre;
using testing::IsEmpty;

struct Degrees {
  int pp = 1, replicate = 1, shard = 1, zero = 0;
  bool server = false;
};

Layout layout_of(const Degrees& of) {
  config::ModelSection section;
  section.preset = "llama-test";
  section.layers = 2;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[Axis::kPp] = of.pp;
  degrees[Axis::kDpReplicate] = of.replicate;
  degrees[Axis::kDpShard] = of.shard;
  Layout layout;
  layout.model = arch::resolve_model(section);
  layout.mesh = mesh::Mesh(degrees);
  layout.pipeline.ranks = of.pp;
  layout.pipeline.first_layer = stages_of_blocks(std::vector<int>(static_cast<size_t>(of.pp), 2 / of.pp));
  layout.zero = of.zero;
  layout.data_parallel = of.server ? config::DataParallel::kParameterServer : config::DataParallel::kRing;
  layout.micro_batch = 3;
  layout.seq_len = 5;
  return layout;
}

int64_t unit_numel(const Layout& layout, int layer) {
  for (const arch::FlatUnit& unit : layout.flat_layout(0).units)
    if (unit.layer == layer) return unit.numel();
  return 0;
}

using Row = std::tuple<std::string, Collective, Algorithm, SumOrder, int, int64_t, int64_t>;
std::vector<Row> rows(const Layout& layout, const Action& action, int rank = 0) {
  const Program program{.buckets = {{.units = {2, 1}, .begin = 0, .end = 100, .pipeline = 0}}};
  std::vector<Row> made;
  for (const PlannedCall& call : planned_calls(layout, program, rank, action))
    made.emplace_back(call_text(call.id), call.collective, call.algorithm, call.order, call.root, call.numel, call.element_size);
  return made;
}

TEST(PlannedCalls, SumWholeBucketsAroundARing) {
  EXPECT_THAT(rows(layout_of({.replicate = 4}), {.kind = ActionKind::kReduceGrad, .bucket = 0}),
              ElementsAre(Row("reduce_grad bucket 0", Collective::kAllReduce, Algorithm::kRing, SumOrder::kRing, 0, 100, 4)));
  EXPECT_THAT(rows(layout_of({}), {.kind = ActionKind::kReduceGrad, .bucket = 0}), IsEmpty()) << "one rank";
}

TEST(PlannedCalls, SumUnitByUnitWhereRanksShareOutStates) {
  Layout layout = layout_of({.replicate = 2, .shard = 2, .zero = 1});
  const int64_t second = unit_numel(layout, 2), first = unit_numel(layout, 1);
  const Action reduce{.kind = ActionKind::kReduceGrad, .bucket = 0}, copies{.kind = ActionKind::kReduceShard, .bucket = 0};
  using enum Collective;
  EXPECT_THAT(rows(layout, reduce),
              ElementsAre(Row("reduce_grad bucket 0", kReduceScatter, Algorithm::kRing, SumOrder::kRing, 0, second, 4),
                          Row("reduce_grad bucket 0", kReduceScatter, Algorithm::kRing, SumOrder::kRing, 0, first, 4)));
  EXPECT_THAT(rows(layout, copies),
              ElementsAre(Row("reduce_shard bucket 0", kAllReduce, Algorithm::kRing, SumOrder::kRing, 0, second / 2, 4),
                          Row("reduce_shard bucket 0", kAllReduce, Algorithm::kRing, SumOrder::kRing, 0, first / 2, 4)));
  EXPECT_THAT(rows(layout, {.kind = ActionKind::kUnshard, .unit = 1}),
              ElementsAre(Row("unshard blocks.0", kAllGather, Algorithm::kRing, SumOrder::kNone, 0, first, 4)));
  layout.reduce_precision = config::Precision::kBf16;
  EXPECT_THAT(rows(layout, reduce),
              ElementsAre(Row("reduce_grad bucket 0", kAllToAll, Algorithm::kDirect, SumOrder::kRanks, 0, second, 2),
                          Row("reduce_grad bucket 0", kAllToAll, Algorithm::kDirect, SumOrder::kRanks, 0, first, 2)));
}

TEST(PlannedCalls, AParameterServerSumsAndTells) {
  const Layout layout = layout_of({.replicate = 3, .server = true});
  EXPECT_THAT(rows(layout, {.kind = ActionKind::kPush, .bucket = 0}),
              ElementsAre(Row("push bucket 0", Collective::kReduce, Algorithm::kDirect, SumOrder::kRanks, kServerRank, 100, 4)));
  EXPECT_THAT(rows(layout, {.kind = ActionKind::kPull, .bucket = 0}),
              ElementsAre(Row("pull bucket 0", Collective::kBroadcast, Algorithm::kDirect, SumOrder::kNone, kServerRank, 100, 4)));
  EXPECT_THAT(rows(layout, {.kind = ActionKind::kNorm}, 1),
              ElementsAre(Row("norm", Collective::kBroadcast, Algorithm::kDirect, SumOrder::kNone, kServerRank, 1, 8)));
}

TEST(PlannedCalls, LossTokensAndNormAreSumsInRankOrder) {
  const Layout layout = layout_of({.pp = 2, .replicate = 2});
  EXPECT_THAT(rows(layout, {.kind = ActionKind::kLoss}),
              ElementsAre(Row("loss", Collective::kAllReduce, Algorithm::kDirect, SumOrder::kRanks, 0, 3, 8)));
  EXPECT_THAT(rows(layout, {.kind = ActionKind::kTokens}),
              ElementsAre(Row("tokens", Collective::kAllReduce, Algorithm::kDirect, SumOrder::kRanks, 0, 1, 8)));
  EXPECT_THAT(rows(layout, {.kind = ActionKind::kNorm}),
              ElementsAre(Row("norm", Collective::kAllReduce, Algorithm::kDirect, SumOrder::kRanks, 0, 1, 8)));
}

// The two ranks of a transfer see one group, the sender first; each names the other.
TEST(PlannedCalls, TransfersHaveTwoSides) {
  const Layout layout = layout_of({.pp = 2});
  const int64_t numel = 3 * 5 * layout.model.hidden;
  const Action send{.kind = ActionKind::kSendForward, .stage = 0}, recv{.kind = ActionKind::kRecvForward, .stage = 1};
  EXPECT_THAT(rows(layout, send, 0),
              ElementsAre(Row("send_f stage 0", Collective::kSend, Algorithm::kDirect, SumOrder::kNone, 1, numel, 4)));
  EXPECT_THAT(rows(layout, recv, 1),
              ElementsAre(Row("recv_f stage 1", Collective::kRecv, Algorithm::kDirect, SumOrder::kNone, 0, numel, 4)));
  EXPECT_EQ(planned_calls(layout, {}, 0, send).front().group, planned_calls(layout, {}, 1, recv).front().group);
}

TEST(PlannedCalls, AreMadeOnceForAllMicrobatches) {
  const Layout layout = layout_of({.pp = 2});
  const Program program;
  CallTable table(layout, program, 0);
  const PlannedCall* call = table.only({.kind = ActionKind::kSendForward, .stage = 0, .microbatch = 0});
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(table.only({.kind = ActionKind::kSendForward, .stage = 0, .microbatch = 1}), call);
  EXPECT_EQ(table.only({.kind = ActionKind::kStep}), nullptr);
}

TEST(Summation, OrdersFollowFromTheAlgorithm) {
  EXPECT_EQ(order_of(Collective::kAllReduce, Algorithm::kRing), SumOrder::kRing);
  EXPECT_EQ(order_of(Collective::kReduce, Algorithm::kDirect), SumOrder::kRanks);
  EXPECT_EQ(order_of(Collective::kAllReduce, Algorithm::kExchange), SumOrder::kRanks);
  EXPECT_EQ(order_of(Collective::kReduce, Algorithm::kTree), SumOrder::kTree);
  EXPECT_EQ(order_of(Collective::kAllGather, Algorithm::kRing), SumOrder::kNone);
}

// 2^53 + 1 is no double: what comes first decides.
TEST(Summation, ByIndexAddsFromTheFirst) {
  const double large = 9007199254740992.0;
  EXPECT_EQ(sum_on_rank(Summed::kNorm, std::vector<double>{1, 1, large}), large + 2);
  EXPECT_EQ(sum_on_rank(Summed::kLoss, std::vector<double>{large, 1, 1}), large);
}

TEST(Summation, OfActivationsIsMadeBySize) {
  EXPECT_EQ(prompt_algorithm(Collective::kAllReduce, 1 << 10, 4), Algorithm::kExchange);
  EXPECT_EQ(prompt_algorithm(Collective::kAllReduce, 1 << 20, 4), Algorithm::kRing);
  EXPECT_EQ(prompt_algorithm(Collective::kAllReduce, 1 << 20, 2), Algorithm::kExchange);
  EXPECT_EQ(prompt_algorithm(Collective::kAllGather, 1 << 10, 4), Algorithm::kDirect);
}

}  // namespace
}  // namespace lockstep::program
