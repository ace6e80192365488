// Killed while saving, a full disk, and bits of a checkpoint flipped all over.
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/save.h"
#include "support/folders.h"
#include "support/run_ranks.h"

namespace lockstep::checkpoint {
namespace {

using engine::StateKind;
using engine::StateTensor;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path fresh_folder(const std::string& name) { return support::fresh_place("faults-" + name) / "checkpoints"; }

// One parameter [rows, 8] and its moments, held alike by all ranks.
std::vector<StateTensor> state_of(int64_t rows, int ranks, int rank) {
  std::vector<StateTensor> state;
  for (const auto kind : {StateKind::kParameter, StateKind{"exp_avg"}, StateKind{"exp_avg_sq"}})
    state.push_back({.name = "w",
                     .kind = kind,
                     .global_shape = {rows, 8},
                     .offset = {0, 0},
                     .local = at::arange(rows * 8).to(at::kFloat).reshape({rows, 8}),
                     .replica = rank,
                     .num_replicas = ranks});
  return state;
}

void save_step(const fs::path& directory, int64_t rows, int ranks, int64_t step) {
  testing::run_ranks(ranks, [&](comm::World& world) {
    const auto communicator = world.all_ranks("world");
    const auto state = state_of(rows, ranks, world.rank());
    const TrainState progress{.step = step};
    save({.directory = directory, .state = state, .train_state = progress, .world = *communicator, .keep = 2});
  });
}

// Runs first: a forked child needs a parent without other threads.
TEST(Faults, AKillAtAnyMomentLeavesAWholeStep) {
  const fs::path directory = fresh_folder("kill");
  save_step(directory, 64, 2, 1);
  int64_t newest = 1;
  for (int64_t step = 2; step < 40; ++step) {
    const pid_t child = ::fork();
    if (child == 0) {
      save_step(directory, 64, 2, step);
      ::_exit(0);
    }
    ASSERT_GT(child, 0);
    ::usleep(static_cast<useconds_t>(1500 * (step - 2)));  // from "at once" to "after it was done"
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const Latest latest = find_latest(directory);
    ASSERT_TRUE(latest.path.has_value()) << "killed in step " << step;
    EXPECT_GE(latest.step, newest) << "killed in step " << step;
    EXPECT_EQ(latest.skipped.size(), 0u) << latest.skipped[0].problem;
    EXPECT_EQ(verify_sums(*latest.path, read_manifest(*latest.path)), std::vector<std::string>());
    newest = latest.step;
  }
  save_step(directory, 64, 2, 100);
  for (const auto& entry : fs::directory_iterator(directory))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-")) << entry.path();
}

TEST(Faults, AFullDiskIsEveryRanksErrorAndOldStepsStay) {
  const fs::path directory = fresh_folder("full");
  save_step(directory, 64, 2, 1);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string problem;
  try {
    save_step(directory, 1024, 2, 2);  // 16 KiB a rank and tensor
  } catch (const CheckpointError& error) {
    problem = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(problem, HasSubstr("LS1306"));
  EXPECT_THAT(problem, HasSubstr("File too large"));
  EXPECT_EQ(find_latest(directory).step, 1);
}

bool is_found(const fs::path& step) {
  try {
    return !verify_sums(step, read_manifest(step)).empty();
  } catch (const Error&) {
    return true;
  }
}

void overwrite(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Faults, DamageAnywhereIsFound) {
  const fs::path directory = fresh_folder("flips");
  save_step(directory, 5, 2, 1);
  const fs::path step = directory / "step-00000001";
  ASSERT_FALSE(is_found(step));
  for (const auto& entry : fs::recursive_directory_iterator(step)) {
    if (!entry.is_regular_file()) continue;
    const std::string bytes = read_file(entry.path());
    for (size_t i = 0; i < bytes.size(); i += 3) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
      overwrite(entry.path(), damaged);
      EXPECT_TRUE(is_found(step)) << entry.path() << " byte " << i;
    }
    for (size_t size = 0; size < bytes.size(); size += 17) {
      overwrite(entry.path(), bytes.substr(0, size));
      EXPECT_TRUE(is_found(step)) << entry.path() << " cut at " << size;
    }
    overwrite(entry.path(), bytes + "x");
    EXPECT_TRUE(is_found(step)) << entry.path() << " too long";
    overwrite(entry.path(), bytes);
  }
  EXPECT_FALSE(is_found(step));
}

}  // namespace
}  // namespace lockstep::checkpoint
