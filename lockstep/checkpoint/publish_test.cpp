// A step that is replaced, killed at each system call that changes the folder.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/publish.h"
#include "lockstep/checkpoint/save.h"
#include "support/folders.h"
#include "support/run_ranks.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

constexpr int64_t kStep = 7;

fs::path fresh_folder(const std::string& name) { return support::fresh_place("publish-" + name) / "checkpoints"; }

// One parameter and its moments, all `value`.
std::vector<engine::StateTensor> state_of(float value) {
  std::vector<engine::StateTensor> state;
  for (const auto kind : {engine::StateKind::kParameter, engine::StateKind{"exp_avg"}, engine::StateKind{"exp_avg_sq"}})
    state.push_back({.name = "w", .kind = kind, .global_shape = {4, 2}, .offset = {0, 0}, .local = at::full({4, 2}, value)});
  return state;
}

SaveResult save_value(const fs::path& directory, float value, int64_t step = kStep) {
  SaveResult result;
  testing::run_ranks(1, [&](comm::World& world) {
    const auto communicator = world.communicator({0}, "world");
    const auto state = state_of(value);
    const TrainState progress{.step = step};
    result = save({.directory = directory, .state = state, .train_state = progress, .world = *communicator});
  });
  return result;
}

// The value that a load of `step` finds everywhere.
float loaded_value(const fs::path& step) {
  const auto state = state_of(0);
  load(step, state);
  const float value = state[0].local.const_data_ptr<float>()[0];
  for (const engine::StateTensor& tensor : state) EXPECT_TRUE(at::full({4, 2}, value).equal(tensor.local)) << step;
  return value;
}

// A folder with step 7 of value 1, and one of value 2 written beside it.
fs::path prepared(const std::string& name) {
  const fs::path directory = fresh_folder(name), elsewhere = fresh_folder(name + "-new");
  save_value(directory, 1);
  save_value(elsewhere, 2);
  fs::rename(elsewhere / step_name(kStep), directory / ".tmp-step-00000007");
  return directory;
}

// In a child: true where it was killed before its call number `at`, counted from 0; false where it came to its end.
bool is_killed(int at, const std::function<void(const PublishOptions&)>& work, bool exchange) {
  const pid_t child = ::fork();
  if (child == 0) {
    int calls = 0;
    work({.exchange = exchange, .before = [&](const char*) {
            if (calls++ == at) ::kill(::getpid(), SIGKILL);
          }});
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status);
}

void expect_whole(const fs::path& directory) {
  const Latest latest = find_latest(directory);
  ASSERT_TRUE(latest.path.has_value());
  EXPECT_EQ(latest.step, kStep);
  EXPECT_THAT(latest.skipped, ::testing::IsEmpty());
  EXPECT_EQ(list_steps(directory).size(), 1u);
  EXPECT_THAT(loaded_value(*latest.path), ::testing::AnyOf(1.f, 2.f));
}

class Publish : public ::testing::TestWithParam<bool> {};

TEST_P(Publish, AKillAtAnyCallLeavesAWholeStep) {
  bool killed = true;
  int at = 0;
  for (; killed; ++at) {
    const fs::path directory = prepared("kill");
    const auto publish = [&](const PublishOptions& options) {
      publish_step(directory / ".tmp-step-00000007", directory / step_name(kStep), options);
    };
    killed = is_killed(at, publish, GetParam());
    SCOPED_TRACE(at);
    expect_whole(directory);
    // The repair may be killed as well, again and again.
    bool repair_killed = true;
    for (int repair_at = 0; repair_killed; ++repair_at) {
      repair_killed = is_killed(repair_at, [&](const PublishOptions& options) { repair_steps(directory, options); }, GetParam());
      expect_whole(directory);
    }
    EXPECT_EQ(find_latest(directory).path->filename(), step_name(kStep));
    // The next save finds nothing in its way, and clears what is left.
    save_value(directory, 3, kStep + 1);
    EXPECT_EQ(find_latest(directory).step, kStep + 1);
    for (const auto& entry : fs::directory_iterator(directory))
      EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-")) << entry.path();
  }
  // exchange, sync, remove; or rename, sync, rename, rename, sync, remove.
  EXPECT_EQ(at - 1, GetParam() ? 3 : 6);
}

TEST_P(Publish, TheNewOneIsThereInTheEnd) {
  const fs::path directory = prepared("end");
  publish_step(directory / ".tmp-step-00000007", directory / step_name(kStep), {.exchange = GetParam()});
  EXPECT_EQ(loaded_value(directory / step_name(kStep)), 2);
  EXPECT_FALSE(fs::exists(directory / ".tmp-step-00000007"));
}

INSTANTIATE_TEST_SUITE_P(FileSystem, Publish, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "exchanges" : "renames"; });

TEST(Repair, ADamagedNewStepDoesNotReplaceAWholeOne) {
  const fs::path directory = prepared("damaged");
  fs::rename(directory / ".tmp-step-00000007", directory / "step-00000007.new");
  fs::remove(directory / "step-00000007.new/manifest.json");
  EXPECT_EQ(loaded_value(*find_latest(directory).path), 1);
  repair_steps(directory);
  EXPECT_EQ(loaded_value(directory / step_name(kStep)), 1);
  EXPECT_FALSE(fs::exists(directory / "step-00000007.new"));
}

TEST(Repair, WhatAnEarlierVersionLeftBetweenTwoRenamesIsKept) {
  for (const bool is_new_whole : {true, false}) {
    const fs::path directory = prepared("earlier");
    fs::rename(directory / step_name(kStep), directory / ".tmp-replaced-step-00000007");
    if (!is_new_whole) fs::remove(directory / ".tmp-step-00000007/manifest.json");
    EXPECT_EQ(find_latest(directory).path, std::nullopt);
    save_value(directory, 3, kStep + 1);
    EXPECT_EQ(loaded_value(directory / step_name(kStep)), is_new_whole ? 2 : 1);
  }
}

TEST(Latest, ThatIsAFolderIsAWarningAndStays) {
  const fs::path directory = fresh_folder("latest");
  save_value(directory, 1);
  EXPECT_EQ(save_value(directory, 1, kStep + 1).warning, "");
  EXPECT_EQ(fs::read_symlink(directory / "latest"), step_name(kStep + 1));
  // As `cp -rL` leaves it.
  fs::remove(directory / "latest");
  fs::copy(directory / step_name(kStep), directory / "latest", fs::copy_options::recursive);
  const SaveResult result = save_value(directory, 2, kStep + 2);
  EXPECT_THAT(result.warning, HasSubstr("latest is no link"));
  EXPECT_EQ(loaded_value(directory / "latest"), 1);
  EXPECT_EQ(find_latest(directory).step, kStep + 2);
}

}  // namespace
}  // namespace lockstep::checkpoint
