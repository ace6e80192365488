// A call on a GPU that is aborted looks done there. What it leaves behind reaches no weight and no moment.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/test_halting_nccl.h"
#include "lockstep/engine/test_steps.h"

namespace lockstep::engine {
namespace {

using program::Collective;
using testing::layout_for;
using testing::microbatches;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::vector<at::Tensor> copies(const std::vector<StateTensor>& state) {
  std::vector<at::Tensor> all;
  for (const StateTensor& tensor : state) all.push_back(tensor.local.clone());
  return all;
}

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return cat(error.message().code, ": ", error.message().what);
  }
  return "nothing";
}

// Two steps that end well, and a third in which the reductions of gradients are aborted when NORM has gone past them.
void expect_untouched_weights(const program::Layout& layout, Collective reduction) {
  const std::string where = program::describe(layout);
  const bool pends = layout.pipeline.post_validation;
  comm::run_halting_ranks(layout.mesh.world_size(), [&](comm::World& world, comm::HaltingDevice& device) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .max_grad_norm = 0}, groups);
    const std::vector<StateTensor> state = executor.store().state();
    const auto step = [&](int64_t index) {
      executor.step(microbatches(layout, world.rank(), index), index + 1, 1e-3, pends);
    };
    step(0);
    step(1);
    if (!pends) executor.store();  // what was gathered has come
    const std::vector<at::Tensor> before = copies(state);
    device.halted = reduction;
    device.halts = true;
    // Of a rank that has lost a call, or of its peer, which may have got what that call left.
    EXPECT_THAT(message_of([&] { step(2); }),
                AnyOf(AllOf(HasSubstr("LS3042"), HasSubstr("the fake failed")), HasSubstr("LS3003")))
        << where << " rank " << world.rank();
    EXPECT_GT(device.launched.load(), 0) << where;
    const std::vector<at::Tensor> after = copies(state);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i])) << where << " " << state[i].name;
  });
}

TEST(AbortedCall, OfAReductionReachesNoWeight) {
  expect_untouched_weights(layout_for({.dp = 2}), Collective::kAllReduce);
  expect_untouched_weights(layout_for({.dp = 2, .precision = config::Precision::kBf16, .overlap = false}), Collective::kAllReduce);
  expect_untouched_weights(layout_for({.dp = 2, .zero = 1}), Collective::kReduceScatter);
  expect_untouched_weights(layout_for({.dp = 2, .kind = config::DataParallel::kParameterServer}), Collective::kReduce);
}

// Of what moved on for each microbatch the step ends at the next call.
TEST(AbortedCall, OfTransientGradientsReachesNoWeight) {
  expect_untouched_weights(layout_for({.dp = 2, .zero = 3}), Collective::kReduceScatter);
}

// The update goes ahead of the other stages' norms, not of this rank's reductions.
TEST(AbortedCall, ReachesNoUpdateThatGoesAhead) {
  program::Layout layout = layout_for(
      {.preset = "llama-test", .dp = 2, .pp = 2, .schedule = program::ScheduleKind::kZbH2, .blocks = 6}, 16);
  layout.pipeline.post_validation = true;
  expect_untouched_weights(layout, Collective::kAllReduce);
}

}  // namespace
}  // namespace lockstep::engine
