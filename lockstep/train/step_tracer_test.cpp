#include "lockstep/train/step_tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/engine/test_steps.h"
#include "lockstep/train/test_run_output.h"
#include "support/run_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Nothing of an earlier step is left to do in a step that is timed.
TEST(StepTracer, SettlesTheStepsThatItTimesAndTheOneBefore) {
  const program::Layout layout = engine::testing::layout_for({.dp = 1});
  lockstep::testing::run_ranks(1, [&](comm::World& world) {
    engine::Groups groups(world, layout);
    engine::Executor executor({.layout = layout}, groups);
    const support::ScopedFolder folder("step-tracer");
    const RunDirectory directory(folder.path());
    const auto due = [&](config::TracedSteps steps) {
      return testing::due_steps(StepTracer(directory, steps, world, groups, executor), 9);
    };
    EXPECT_THAT(due({}), IsEmpty());
    EXPECT_THAT(due({.first = 1, .last = 1}), ElementsAre(1));
    EXPECT_THAT(due({.first = 4, .last = 6}), ElementsAre(3, 4, 5, 6));
  });
}

}  // namespace
}  // namespace lockstep::train
