#include "lockstep/program/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/program/test_program.h"

namespace lockstep::program {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

CollectiveCall call_of(Collective collective, Algorithm algorithm, int n, int64_t numel, int root = 0) {
  CollectiveCall call{.collective = collective, .algorithm = algorithm, .group = {}, .numel = numel, .root = root};
  for (int i = 0; i < n; ++i) call.group.push_back(10 + i);  // world ranks differ from group ranks
  return call;
}

int64_t total(const std::map<int, int64_t>& sent) {
  return std::accumulate(sent.begin(), sent.end(), int64_t{0},
                         [](int64_t sum, auto& link) { return sum + link.second; });
}

int64_t total(const CollectiveCall& call) {
  int64_t sum = 0;
  for (int r = 0; r < static_cast<int>(call.group.size()); ++r) sum += total(predicted_sends(call, r));
  return sum;
}

TEST(PredictedSendsTest, RingAllReducePutsTwiceNMinus1OverNOnEachLink) {
  for (int n : {2, 3, 4, 7}) {
    const auto call = call_of(Collective::kAllReduce, Algorithm::kRing, n, 84 * n);
    for (int r = 0; r < n; ++r) {
      EXPECT_THAT(predicted_sends(call, r), ElementsAre(Pair(10 + (r + 1) % n, 2 * (n - 1) * 84 * 4)));
    }
  }
}

TEST(PredictedSendsTest, AnExchangeIsTheWholeBufferToEveryOther) {
  const auto call = call_of(Collective::kAllReduce, Algorithm::kExchange, 4, 10);
  EXPECT_THAT(predicted_sends(call, 2), ElementsAre(Pair(10, 40), Pair(11, 40), Pair(13, 40)));
  EXPECT_FALSE(supports(Collective::kAllGather, Algorithm::kExchange));
  // Between two ranks it sends no more than direct, whatever the size; among more it is for small buffers.
  EXPECT_EQ(total(call_of(Collective::kAllReduce, Algorithm::kExchange, 2, 11)),
            total(call_of(Collective::kAllReduce, Algorithm::kDirect, 2, 11)));
  EXPECT_EQ(prompt_all_reduce(1 << 24, 2), Algorithm::kExchange);
  EXPECT_EQ(prompt_all_reduce(1 << 12, 4), Algorithm::kExchange);
  EXPECT_EQ(prompt_all_reduce(1 << 20, 4), Algorithm::kDirect);
}

TEST(PredictedSendsTest, UnevenRingLeavesOutTwoChunks) {
  // Chunks of 10 elements over 3 ranks: 4, 3, 3. Rank r sends all chunks but r, then all but r + 1.
  const auto call = call_of(Collective::kAllReduce, Algorithm::kRing, 3, 10);
  EXPECT_THAT(predicted_sends(call, 0), ElementsAre(Pair(11, (6 + 7) * 4)));
  EXPECT_THAT(predicted_sends(call, 1), ElementsAre(Pair(12, (7 + 7) * 4)));
  EXPECT_THAT(predicted_sends(call, 2), ElementsAre(Pair(10, (7 + 6) * 4)));
}

TEST(PredictedSendsTest, ScatterThenGatherIsAllReduce) {
  for (Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
    for (int r = 0; r < 5; ++r) {
      const int64_t all = total(predicted_sends(call_of(Collective::kAllReduce, algorithm, 5, 13), r));
      const int64_t first = total(predicted_sends(call_of(Collective::kReduceScatter, algorithm, 5, 13), r));
      const int64_t second = total(predicted_sends(call_of(Collective::kAllGather, algorithm, 5, 13), r));
      EXPECT_EQ(all, first + second);
    }
  }
}

TEST(PredictedSendsTest, BinomialTree) {
  // Over 6 ranks from root 1, v = r - 1: 0 -> 4, 2, 1; 2 -> 3; 4 -> 5.
  const auto broadcast = call_of(Collective::kBroadcast, Algorithm::kTree, 6, 2, 1);
  EXPECT_THAT(predicted_sends(broadcast, 1), ElementsAre(Pair(12, 8), Pair(13, 8), Pair(15, 8)));
  EXPECT_THAT(predicted_sends(broadcast, 3), ElementsAre(Pair(14, 8)));
  EXPECT_THAT(predicted_sends(broadcast, 5), ElementsAre(Pair(10, 8)));
  EXPECT_THAT(predicted_sends(broadcast, 0), IsEmpty());
  const auto reduce = call_of(Collective::kReduce, Algorithm::kTree, 6, 2, 1);
  EXPECT_THAT(predicted_sends(reduce, 0), ElementsAre(Pair(15, 8)));
  EXPECT_THAT(predicted_sends(reduce, 1), IsEmpty());
  for (int n = 2; n < 18; ++n) {
    EXPECT_EQ(total(call_of(Collective::kBroadcast, Algorithm::kTree, n, 5)), (n - 1) * 20) << n;
    EXPECT_EQ(total(call_of(Collective::kReduce, Algorithm::kTree, n, 5)), (n - 1) * 20) << n;
    EXPECT_EQ(total(call_of(Collective::kAllReduce, Algorithm::kTree, n, 5)), 2 * (n - 1) * 20) << n;
  }
}

TEST(PredictedSendsTest, HalvingDoublingCarriesWhatTheRingCarries) {
  for (int n : {2, 4, 8}) {
    const auto call = call_of(Collective::kAllReduce, Algorithm::kHalvingDoubling, n, 8 * n);
    for (int r = 0; r < n; ++r) EXPECT_EQ(total(predicted_sends(call, r)), 2 * (n - 1) * 8 * 4);
  }
  EXPECT_THAT(predicted_sends(call_of(Collective::kAllReduce, Algorithm::kHalvingDoubling, 4, 8), 1),
              ElementsAre(Pair(10, 2 * 2 * 4), Pair(13, 2 * 4 * 4)));
}

TEST(PredictedSendsTest, HalvingDoublingFoldsTheRanksBeyondAPowerOfTwo) {
  const auto call = call_of(Collective::kAllReduce, Algorithm::kHalvingDoubling, 3, 10);
  EXPECT_THAT(predicted_sends(call, 2), ElementsAre(Pair(10, 40)));
  EXPECT_THAT(predicted_sends(call, 0), ElementsAre(Pair(11, 40), Pair(12, 40)));
  EXPECT_THAT(predicted_sends(call, 1), ElementsAre(Pair(10, 40)));
}

TEST(PredictedSendsTest, DirectOnes) {
  // Chunks of 7 over 3: 3, 2, 2.
  EXPECT_THAT(predicted_sends(call_of(Collective::kAllReduce, Algorithm::kDirect, 3, 7), 0),
              ElementsAre(Pair(11, (2 + 3) * 4), Pair(12, (2 + 3) * 4)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kBroadcast, Algorithm::kDirect, 3, 7, 1), 1),
              ElementsAre(Pair(10, 28), Pair(12, 28)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kBroadcast, Algorithm::kDirect, 3, 7, 1), 2), IsEmpty());
  EXPECT_THAT(predicted_sends(call_of(Collective::kReduce, Algorithm::kDirect, 3, 7, 1), 2), ElementsAre(Pair(11, 28)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kGather, Algorithm::kDirect, 3, 7), 2), ElementsAre(Pair(10, 8)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kScatter, Algorithm::kDirect, 3, 7), 0),
              ElementsAre(Pair(11, 8), Pair(12, 8)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kAllToAll, Algorithm::kDirect, 3, 9), 1),
              ElementsAre(Pair(10, 12), Pair(12, 12)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kShift, Algorithm::kDirect, 3, 7), 1), ElementsAre(Pair(12, 28)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kShift, Algorithm::kDirect, 3, 7), 2), ElementsAre(Pair(10, 28)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kShiftBack, Algorithm::kDirect, 3, 7), 0), ElementsAre(Pair(12, 28)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kShiftBack, Algorithm::kDirect, 3, 7), 1), ElementsAre(Pair(10, 28)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kSend, Algorithm::kDirect, 3, 7, 2), 0), ElementsAre(Pair(12, 28)));
  EXPECT_THAT(predicted_sends(call_of(Collective::kRecv, Algorithm::kDirect, 3, 7, 0), 2), IsEmpty());
}

TEST(PredictedSendsTest, BarrierIsOneInt64OwnedByRank0) {
  const auto call = call_of(Collective::kBarrier, Algorithm::kDirect, 3, 0);
  EXPECT_EQ(payload(call), 8);
  EXPECT_THAT(predicted_sends(call, 0), ElementsAre(Pair(11, 8), Pair(12, 8)));
  EXPECT_THAT(predicted_sends(call, 2), ElementsAre(Pair(10, 8)));
}

TEST(PredictedSendsTest, AGroupOfOneSendsNothing) {
  EXPECT_THAT(predicted_sends(call_of(Collective::kAllReduce, Algorithm::kRing, 1, 100), 0), IsEmpty());
}

TEST(PredictedSendsTest, AnAlgorithmThatACollectiveDoesNotHaveIsRefused) {
  EXPECT_THROW(predicted_sends(call_of(Collective::kBroadcast, Algorithm::kRing, 2, 1), 0), InternalError);
  EXPECT_FALSE(supports(Collective::kAllGather, Algorithm::kTree));
}

TEST(LedgerTest, AddsMergesAndCompares) {
  const LedgerKey loss{.id = call_id(Purpose::kLoss), .axis = "dp", .algorithm = Algorithm::kDirect};
  const LedgerKey bucket{.id = call_of_bucket(Purpose::kReduceGrad, 0), .axis = "dp"};
  Ledger one;
  one.add(loss, 24, {{1, 24}});
  one.add(loss, 24, {{1, 24}});
  Ledger two;
  two.add(loss, 48, {{1, 48}});
  EXPECT_EQ(one.entries().at(loss).count, 2);
  EXPECT_EQ(sent_total(one), sent_total(two));
  EXPECT_THAT(Ledger::difference(one, two),
              ElementsAre(HasSubstr("2 calls of 48 B in all, sent 48 B to rank 1; recorded 1 calls")));
  Ledger more = one;
  more.add(bucket, 100, {{1, 100}});
  EXPECT_THAT(Ledger::difference(more, one), ElementsAre(HasSubstr("not recorded")));
  EXPECT_THAT(Ledger::difference(one, more), ElementsAre(HasSubstr("not predicted")));
  two.merge(one);
  EXPECT_EQ(two.entries().at(loss).payload, 96);
  EXPECT_THAT(Ledger::difference(one, one), IsEmpty());
}

}  // namespace
}  // namespace lockstep::program
