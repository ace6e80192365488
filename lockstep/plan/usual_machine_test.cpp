#include "lockstep/plan/usual_machine.h"

#include <gtest/gtest.h>

#include "lockstep/plan/test_layouts.h"
#include "lockstep/plan/time/step_estimate.h"

namespace lockstep::plan {
namespace {

TEST(UsualMachine, HasADeviceForEachRank) {
  EXPECT_EQ(usual_machine(config::Device::kCuda, 20).cluster.nodes, 3);
  EXPECT_EQ(usual_machine(config::Device::kCuda, 20).cluster.device.generation, Generation::kHopper);
  EXPECT_EQ(usual_machine(config::Device::kCpu, 20).cluster.devices(), 20);
  EXPECT_EQ(usual_machine(config::Device::kCpu, 1).cluster.device.generation, Generation::kCpu);
}

TEST(UsualMachine, WhatIsDoneAgainAndWhatMovesTakesTime) {
  config::RunConfig config = small_run();
  const double plain = usual_seconds(layout_of(config, 2), config::Device::kCpu);
  EXPECT_GT(plain, usual_seconds(layout_of(config, 2), config::Device::kCuda));
  config.memory.recompute.list = {config::Recompute::kFull};
  EXPECT_GT(usual_seconds(layout_of(config, 2), config::Device::kCpu), plain);
  config = small_run();
  config.memory.offload.list = {config::Offloaded::kOptimizer};
  EXPECT_GT(usual_seconds(layout_of(config, 2), config::Device::kCuda), usual_seconds(layout_of(small_run(), 2), config::Device::kCuda));
}

}  // namespace
}  // namespace lockstep::plan
