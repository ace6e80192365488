// A call on a GPU that is aborted looks done there. What it leaves behind is in no checkpoint.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/async_save.h"
#include "lockstep/comm/test_halting_nccl.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 2;

// One parameter that both ranks hold.
std::vector<engine::StateTensor> state_of(const at::Tensor& values, const comm::World& world) {
  return {{.name = "w",
           .kind = engine::StateKind::kParameter,
           .global_shape = values.sizes().vec(),
           .offset = {0, 0},
           .local = values,
           .replica = world.rank(),
           .num_replicas = world.size()}};
}

// Saves `state` as `step`; what that said.
std::string problem_of(bool beside, Saver& saver, const SaveRequest& request) {
  try {
    if (!beside) {
      save(request);
    } else {
      saver.start(request.state, request.train_state);
      saver.wait();
    }
  } catch (const Error& error) {
    return cat(error.message().code, ": ", error.message().what);
  }
  return "";
}

TEST(AbortedCall, IsInNoCheckpoint) {
  for (const bool beside : {false, true}) {
    const fs::path directory = fs::path(::testing::TempDir()) / "lockstep-aborted" / (beside ? "beside" : "between");
    fs::remove_all(directory);
    comm::run_halting_ranks(kRanks, [&](comm::World& world, comm::HaltingDevice& device) {
      const auto training = world.communicator({0, 1}, "world");
      Saver saver({.world = world.communicator({0, 1}, "checkpoint"), .directory = directory});
      const at::Tensor values = at::full({2, 4}, 1.0);
      const std::vector<engine::StateTensor> state = state_of(values, world);
      const auto save_as = [&](int64_t step) {
        const TrainState progress{.step = step};
        return problem_of(beside, saver, {.directory = directory, .state = state, .train_state = progress, .world = *training});
      };
      EXPECT_EQ(save_as(1), "");
      device.halted = program::Collective::kBroadcast;
      device.halts = true;
      training->broadcast(values, 0, {.id = program::named_call("pull")}).wait();  // on its way into the weights
      EXPECT_NE(save_as(2), "") << "rank " << world.rank();
    });
    EXPECT_TRUE(fs::exists(directory / "step-00000001"));
    EXPECT_FALSE(fs::exists(directory / "step-00000002")) << (beside ? "beside training" : "between steps");
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
