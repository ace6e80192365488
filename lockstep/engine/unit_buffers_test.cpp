// Units that stay beside units that come and go.
#include "lockstep/engine/unit_buffers.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::engine {
namespace {

TEST(UnitBuffers, WhatStaysLiesSideBySideBesideWhatComesAndGoes) {
  UnitBuffers buffers({16, 32, 48, 16}, {.transient = true, .stays = {true, false, true, true}});
  EXPECT_FALSE(buffers.transient(0));
  EXPECT_TRUE(buffers.transient(1));
  EXPECT_TRUE(buffers.held(2));
  EXPECT_FALSE(buffers.held(1));
  buffers.unit(2).fill_(3);
  buffers.unit(3).fill_(5);
  const at::Tensor both = buffers.slice(48, 112);  // of units 2 and 3
  EXPECT_EQ(both.numel(), 64);
  EXPECT_TRUE(both.is_alias_of(buffers.unit(3)));
  EXPECT_EQ(both.sum().item<float>(), 48 * 3 + 16 * 5);
  EXPECT_EQ(buffers.slice(0, 16).numel(), 16);
  EXPECT_THROW(buffers.slice(0, 48), InternalError);
  buffers.hold(1);
  buffers.unit(1).fill_(7);
  buffers.zero();
  EXPECT_EQ(both.sum().item<float>(), 0);
  EXPECT_EQ(buffers.unit(1).sum().item<float>(), 32 * 7);
  buffers.drop(1);
  EXPECT_THROW(buffers.drop(2), InternalError);
}

}  // namespace
}  // namespace lockstep::engine
