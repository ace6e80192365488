#include "lockstep/train/saving.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/train/test_run_output.h"

namespace lockstep::train {
namespace {

using testing::due_steps;
using testing::TestOutput;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Checkpoints that are written at once, under a clock that is set by hand.
struct ClockedRun {
  ClockedRun(const std::string& name, config::Interval every) : output(name), saving(options(every), *output) {}

  SavingOptions options(config::Interval every) {
    const auto ended = [this] { return std::exchange(in_flight, std::nullopt); };
    return {.every = every,
            .total = 10,
            .write =
                [this, ended] {
                  const auto before = ended();
                  saved.push_back(at.step);
                  in_flight = checkpoint::SaveResult{.path = "here", .step = at.step, .bytes = 1, .seconds = 2};
                  return before;
                },
            .poll = ended,
            .wait = ended,
            .now = [this] { return now; }};
  }
  void run_to(int64_t step) {
    while (at.step < step) {
      ++at.step;
      now += std::chrono::seconds(1);
      saving.settled(at);
      if (saving.overdue()) saving.save(at);
    }
  }

  TestOutput output;
  RunPosition at;
  Time now{};
  std::optional<checkpoint::SaveResult> in_flight;
  std::vector<int64_t> saved;
  Saving saving;
};

TEST(Timer, RingsOnceItsTimeHasCome) {
  const Time start = Time() + std::chrono::hours(5);
  const Timer timer{.seconds = 2.5, .start = start};
  EXPECT_FALSE(timer.rings(start));
  EXPECT_FALSE(timer.rings(start + std::chrono::milliseconds(2499)));
  EXPECT_TRUE(timer.rings(start + std::chrono::milliseconds(2500)));
  EXPECT_TRUE(timer.rings(start + std::chrono::hours(1)));
  EXPECT_TRUE((Timer{.seconds = 0, .start = start}.rings(start)));
  EXPECT_FALSE((Timer{.start = start}.rings(start + std::chrono::hours(1))));
}

TEST(Saving, IsDueEverySoManyStepsButForTheLast) {
  ClockedRun run("saving-steps", {.steps = 5});
  EXPECT_THAT(due_steps(run.saving, 10), ElementsAre(5));
  ClockedRun never("saving-never", {.steps = 0});
  EXPECT_THAT(due_steps(never.saving, 10), IsEmpty());
  ClockedRun clock("saving-clock", {.seconds = 1});
  EXPECT_THAT(due_steps(clock.saving, 10), IsEmpty());
}

TEST(Saving, AClockCountsFromTheLastSave) {
  ClockedRun run("saving-seconds", {.seconds = 3});
  run.now += std::chrono::hours(1);
  run.saving.begin(std::nullopt);
  EXPECT_FALSE(run.saving.overdue());
  run.run_to(4);
  run.now += std::chrono::milliseconds(1500);  // step 5 ends 3.5 s behind the save of step 3
  run.run_to(7);
  EXPECT_THAT(run.saved, ElementsAre(3, 5));
}

TEST(Saving, ASaveByHandPutsTheClockOff) {
  ClockedRun run("saving-by-hand", {.seconds = 3});
  run.saving.begin(std::nullopt);
  run.run_to(2);
  run.saving.save(run.at);
  run.run_to(6);
  EXPECT_THAT(run.saved, ElementsAre(2, 5));
}

TEST(Saving, SavesAStepOnce) {
  ClockedRun run("saving-once", {.steps = 4});
  run.saving.begin(0);
  run.saving.save(run.at);  // the run goes on from that checkpoint
  run.run_to(4);
  run.saving.save(run.at);
  run.run_to(10);
  EXPECT_THAT(run.saved, ElementsAre(4, 8));
  run.saving.save(run.at);
  EXPECT_THAT(run.saved, ElementsAre(4, 8, 10));
}

TEST(Saving, TellsOfASaveWhenItHasEnded) {
  ClockedRun run("saving-tells", {.steps = 4});
  run.saving.begin(std::nullopt);
  run.run_to(4);
  EXPECT_THAT(run.output.rows(), IsEmpty());
  run.run_to(5);
  ASSERT_EQ(run.output.rows().size(), 1u);
  EXPECT_EQ(run.output.rows()[0]["event"], "checkpoint");
  EXPECT_EQ(run.output.rows()[0]["step"], 4);
  run.saving.save(run.at);
  run.saving.wait();
  run.saving.wait();
  ASSERT_EQ(run.output.rows().size(), 2u);
  EXPECT_EQ(run.output.rows()[1]["step"], 5);
}

}  // namespace
}  // namespace lockstep::train
