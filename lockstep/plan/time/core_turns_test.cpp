#include "lockstep/plan/time/core_turns.h"

#include <gtest/gtest.h>

namespace lockstep::plan {
namespace {

TEST(CoreTurns, WorkBeginsOnTheCoreThatIsFreeFirst) {
  CoreTurns turns(2);
  EXPECT_EQ(turns.take(0, 3), 0);
  EXPECT_EQ(turns.take(0, 5), 0) << "on the other";
  EXPECT_EQ(turns.take(1, 2), 3);
  EXPECT_EQ(turns.take(4, 1), 5);
}

TEST(CoreTurns, GapsAreTakenWhereTheWorkFits) {
  CoreTurns turns(1);
  EXPECT_EQ(turns.take(4, 2), 4);
  EXPECT_EQ(turns.take(0, 4), 0);
  EXPECT_EQ(turns.take(0, 1), 6) << "nothing is free before";
  CoreTurns other(1);
  EXPECT_EQ(other.take(4, 2), 4);
  EXPECT_EQ(other.take(1, 4), 6) << "too long for what is free before";
  EXPECT_EQ(other.take(1, 3), 1);
  EXPECT_EQ(other.take(2, 0), 2) << "nothing to do";
}

TEST(CoreTurns, WhatHasPassedIsForgotten) {
  CoreTurns turns(1);
  turns.take(0, 4);
  turns.take(4, 4);
  turns.pass(4);
  EXPECT_EQ(turns.take(5, 1), 8);
}

}  // namespace
}  // namespace lockstep::plan
