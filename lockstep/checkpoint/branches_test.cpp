#include "lockstep/checkpoint/branches.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/save.h"
#include "support/folders.h"
#include "support/run_ranks.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

fs::path run_with_steps(const std::string& name, const std::vector<int64_t>& steps, int keep = 0) {
  const std::string place = "branches-" + name;
  const fs::path directory = (keep == 0 ? support::fresh_place(place) : support::place(place)) / "checkpoints";
  testing::run_ranks(1, [&](comm::World& world) {
    const auto communicator = world.communicator({0}, "world");
    const std::vector<engine::StateTensor> state = {
        {.name = "w", .kind = engine::StateKind::kParameter, .global_shape = {2}, .offset = {0}, .local = at::full({2}, 1.f)}};
    for (const int64_t step : steps) {
      const TrainState progress{.step = step};
      save({.directory = directory, .state = state, .train_state = progress, .world = *communicator, .keep = keep});
    }
  });
  return directory;
}

std::vector<int64_t> steps_in(const std::vector<StepFolder>& folders) {
  std::vector<int64_t> steps;
  for (const StepFolder& folder : folders) steps.push_back(folder.step);
  return steps;
}

TEST(Branches, LaterStepsAreKeptNamedAndNeverChosen) {
  const fs::path directory = run_with_steps("back", {50, 100, 150, 200});
  EXPECT_EQ(went_back_to(directory), std::nullopt);
  const SetAside set_aside = go_back(directory, 50);
  EXPECT_EQ(set_aside.folder, "set-aside-1");
  EXPECT_THAT(set_aside.steps, ElementsAre("step-00000200", "step-00000150", "step-00000100"));
  EXPECT_EQ(went_back_to(directory), 50);
  EXPECT_EQ(find_latest(directory).step, 50);
  EXPECT_EQ(fs::read_symlink(directory / "latest"), "step-00000050");
  // The new branch keeps one step; the old one keeps its own.
  run_with_steps("back", {80, 120}, 1);
  EXPECT_THAT(steps_in(list_steps(directory)), ElementsAre(120));
  EXPECT_THAT(steps_in(list_set_aside(directory)), ElementsAre(200, 150, 100));

  EXPECT_EQ(set_aside_after(directory, 100).folder, "set-aside-2");
  EXPECT_THAT(steps_in(list_set_aside(directory)), ElementsAre(120, 200, 150, 100));
  EXPECT_EQ(went_back_to(directory), 50);  // nobody asked for this one
  EXPECT_EQ(set_aside_after(directory, 100).folder, "");
}

TEST(Branches, InspectListsThemBehindTheOthers) {
  const fs::path directory = run_with_steps("inspect", {1, 2});
  go_back(directory, 1);
  const fs::path run = directory.parent_path();
  EXPECT_THAT(steps_of(run), ElementsAre(directory / "step-00000001"));
  EXPECT_THAT(set_aside_steps_of(run), ElementsAre(directory / "set-aside-1/step-00000002"));
  EXPECT_EQ(run_of(directory / "set-aside-1/step-00000002"), run);
  EXPECT_THAT(set_aside_steps_of(directory / "step-00000001"), IsEmpty());
  const StepReport report = inspect_step(set_aside_steps_of(run)[0]);
  EXPECT_TRUE(report.whole());
  EXPECT_THAT(report_text(report), HasSubstr("whole, set aside when the run went back"));
  EXPECT_EQ(report_json(report)["set_aside"], "set-aside-1");
  EXPECT_TRUE(report_json(inspect_step(directory / "step-00000001"))["set_aside"].is_null());
}

// As a kill leaves it: remembered, and one of two steps is moved.
TEST(Branches, AGoingBackThatWasKilledIsEnded) {
  const fs::path directory = run_with_steps("killed", {50, 100, 150});
  write_file(directory / kWentBackName, R"({"step":50,"setting_aside":"set-aside-1"})");
  fs::create_directories(directory / "set-aside-1");
  fs::rename(directory / "step-00000150", directory / "set-aside-1/step-00000150");
  finish_going_back(directory);
  EXPECT_EQ(find_latest(directory).step, 50);
  EXPECT_THAT(steps_in(list_set_aside(directory)), ElementsAre(150, 100));
  // Ended once: what the run saves from here on is its own.
  run_with_steps("killed", {120}, 9);
  finish_going_back(directory);
  EXPECT_EQ(find_latest(directory).step, 120);
}

TEST(Branches, AMemoryThatCannotBeReadIsAnError) {
  const fs::path directory = run_with_steps("malformed", {1});
  for (const char* text : {"{}", R"({"step":"x"})", R"({"step":1,"setting_aside":"../.."})"}) {
    write_file(directory / kWentBackName, text);
    EXPECT_THROW(went_back_to(directory), CheckpointError) << text;
    EXPECT_THROW(finish_going_back(directory), CheckpointError) << text;
  }
  EXPECT_EQ(find_latest(directory).step, 1);
}

}  // namespace
}  // namespace lockstep::checkpoint
