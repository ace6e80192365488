#include "lockstep/plan/time/rank_lane.h"

#include <gtest/gtest.h>

namespace lockstep::plan {
namespace {

constexpr Breakdown products(double seconds) { return {.products = seconds}; }

TEST(RankLane, WorkAndWaitsAddUpToTheClock) {
  RankLane lane;
  lane.work(products(2), 2);
  lane.wait(3, 5, &Breakdown::pipeline);  // somebody begins to send at 3
  lane.wait(0, 4, &Breakdown::data);      // long over
  EXPECT_EQ(lane.clock(), 5);
  EXPECT_EQ(lane.spent().products, 2);
  EXPECT_EQ(lane.spent().bubble, 1);
  EXPECT_EQ(lane.spent().pipeline, 2);
  EXPECT_EQ(lane.spent().sum(), lane.clock());
}

TEST(RankLane, WhatFliesBesideWorkIsHiddenOrExposed) {
  for (const double flight : {1.0, 4.0}) {
    RankLane lane;
    const int number = lane.fly({.seconds = flight});
    lane.work(products(3), 3);
    lane.wait_for(number);
    EXPECT_EQ(lane.clock(), std::max(3.0, flight));
    EXPECT_EQ(lane.spent().data, std::max(0.0, flight - 3));
  }
}

// It takes a part of the device while it lasts, or longer itself too.
TEST(RankLane, BothSlowEachOtherDown) {
  const auto together = [](double work, double flight, double loss, double drag) {
    RankLane lane;
    const int number = lane.fly({.seconds = flight, .loss = loss, .drag = drag});
    lane.work(products(work), work);
    lane.wait_for(number);
    EXPECT_NEAR(lane.spent().sum(), lane.clock(), 1e-12);
    EXPECT_DOUBLE_EQ(lane.spent().products, work);
    return lane.clock();
  };
  EXPECT_NEAR(together(10, 2, 0.25, 0), 10.5, 1e-12);  // 2 s in which a quarter is lost
  EXPECT_NEAR(together(3, 8, 0.25, 0), 8, 1e-12);
  const double share = 0.3, both = share / (1 + share);
  EXPECT_NEAR(together(10, 2, both, both), 10 + share * 2, 1e-12);  // the longer one and a share of the shorter
  EXPECT_NEAR(together(2, 10, both, both), 10 + share * 2, 1e-12);
  EXPECT_NEAR(together(4, 4, both, both), 4 + share * 4, 1e-12);
}

TEST(RankLane, FlightsOfOneCarrierFollowEachOther) {
  RankLane lane;
  const int first = lane.fly({.carrier = Carrier::kNics, .seconds = 2}), second = lane.fly({.carrier = Carrier::kNics, .seconds = 3});
  const int inside = lane.fly({.carrier = Carrier::kLinks, .seconds = 1});
  lane.wait_for(inside);
  EXPECT_EQ(lane.clock(), 1);
  EXPECT_FALSE(lane.has_landed(first));
  lane.wait_for(second);
  EXPECT_EQ(lane.clock(), 5);
  EXPECT_TRUE(lane.has_landed(first));
  EXPECT_FALSE(lane.flies());
}

TEST(RankLane, BehindOthersAndNoEarlierThanSaid) {
  RankLane lane;
  const int first = lane.fly({.carrier = Carrier::kNics, .seconds = 2});
  const int behind = lane.fly({.carrier = Carrier::kLinks, .after = {first}, .seconds = 1});
  const int later = lane.fly({.carrier = Carrier::kCopies, .ready = 7, .seconds = 1, .loss = 0.5});
  lane.wait_for(behind);
  EXPECT_EQ(lane.clock(), 3);
  lane.work(products(5), 5);  // 4 s, and 1 s of the 8th at half speed, then the rest
  EXPECT_NEAR(lane.clock(), 8.5, 1e-12);
  EXPECT_TRUE(lane.has_landed(later));
}

TEST(RankLane, LandingsAreToldWithTheirTimes) {
  RankLane lane;
  std::vector<std::pair<double, double>> times;
  lane.on_landing([&](int, const Flight& flight) { times.emplace_back(flight.begin, flight.end); });
  lane.fly({.seconds = 2});
  lane.fly({.seconds = 1});
  lane.work(products(4), 4);
  ASSERT_EQ(times.size(), 2U);
  EXPECT_EQ(times[0], std::pair(0.0, 2.0));
  EXPECT_EQ(times[1], std::pair(2.0, 3.0));
}

TEST(RankLane, SendsShareTheNicWithCollectives) {
  RankLane lane;
  EXPECT_EQ(lane.shared(2), 2);
  lane.fly({.carrier = Carrier::kNics, .seconds = 10});
  EXPECT_EQ(lane.shared(2), 4);
  EXPECT_EQ(lane.shared(8), 13);
}

}  // namespace
}  // namespace lockstep::plan
