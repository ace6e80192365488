// NCCL itself, as far as one GPU goes: a group of one rank makes every call through liblockstep_nccl.so. A second rank NCCL
// refuses on the same GPU. Prints how long NCCL takes to start.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "lockstep/base/text.h"
#include "lockstep/comm/nccl_lane.h"
#include "lockstep/comm/nccl_world.h"
#include "support/memory_store.h"

namespace lockstep::comm {
namespace {

using program::Collective;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

// Null where the build has no backend nccl.
std::unique_ptr<NcclApi> plugin() {
  try {
    return load_nccl();
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.message().code, "LS3040") << error.what();
    return nullptr;
  }
}

class NcclPlugin : public ::testing::Test {
 protected:
  void SetUp() override {
    api_ = plugin();
    if (!api_) GTEST_SKIP() << "this build has no backend nccl";
    api_->use_device(0);
    const auto board = std::make_shared<JobBoard>(std::make_shared<testing::MemoryStore>(), 0);
    verdict_ = std::make_shared<NcclVerdict>(board);
    const auto began = Clock::now();
    lane_ = std::make_unique<NcclLane>(api_->begin_group(api_->unique_id(), 0, 1), board, verdict_,
                                       NcclLaneOptions{.name = "one[0]", .ranks = {0}});
    lane_->join();
    std::printf("nccl start-up: %s, a group of one rank joined in %.3f s\n", api_->version().c_str(), seconds_since(began));
  }
  void TearDown() override {
    if (lane_) lane_->close();
  }

  std::shared_ptr<NativeWork> start(Collective collective, const at::Tensor& input, const at::Tensor& output) {
    return lane_->start({.collective = collective,
                         .input = input,
                         .output = output,
                         .parts = {},
                         .progress = {.call = {.id = program::named_call("test"), .collective = collective}},
                         .left = {},
                         .explain = {}});
  }

  std::unique_ptr<NcclApi> api_;
  std::shared_ptr<NcclVerdict> verdict_;
  std::unique_ptr<NcclLane> lane_;
};

TEST_F(NcclPlugin, AGroupOfOneMakesEveryCall) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong})
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast, Collective::kAllGather,
          Collective::kReduceScatter, Collective::kAllToAll, Collective::kGather, Collective::kScatter, Collective::kShift,
          Collective::kShiftBack}) {
      const at::Tensor input = at::arange(1003, at::TensorOptions(type).device(at::kCUDA));
      const at::Tensor output = at::zeros_like(input);
      const auto began = Clock::now();
      start(collective, input, output)->wait();
      EXPECT_TRUE(at::equal(input.cpu(), output.cpu())) << program::collective_name(collective) << " of " << type;
      if (collective == Collective::kAllReduce && type == at::kFloat)
        std::printf("nccl start-up: the first all_reduce took %.3f s\n", seconds_since(began));
    }
  EXPECT_NO_THROW(verdict_->confirm());
}

TEST_F(NcclPlugin, CallsStandInTheOrderOfTheCallersStream) {
  const at::Tensor tensor = at::arange(1000003, at::TensorOptions(at::kFloat).device(at::kCUDA));
  const at::Tensor sum = at::zeros_like(tensor);
  for (int i = 0; i < 20; ++i) tensor.add_(1);
  const auto work = start(Collective::kAllReduce, tensor, sum);
  work->wait();
  const at::Tensor twice = sum.mul(2).cpu();
  const float* values = twice.const_data_ptr<float>();
  for (int64_t i = 0; i < twice.numel(); ++i) ASSERT_EQ(values[i], 2 * (static_cast<float>(i) + 20)) << i;
  EXPECT_TRUE(work->done());
}

// Once given up, everything says why, and nothing hangs.
TEST_F(NcclPlugin, AnAbortedGroupSaysWhy) {
  const at::Tensor tensor = at::arange(1000, at::TensorOptions(at::kFloat).device(at::kCUDA));
  const auto work = start(Collective::kAllReduce, tensor, tensor);
  lane_->fail(std::make_exception_ptr(PeerLostError({.code = "LS3003", .what = "a test"})));
  EXPECT_THROW(verdict_->confirm(), PeerLostError);
  EXPECT_THROW(work->wait(), PeerLostError);
  EXPECT_THROW(start(Collective::kAllReduce, tensor, tensor), PeerLostError);
}

}  // namespace
}  // namespace lockstep::comm
