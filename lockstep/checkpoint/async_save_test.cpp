// Saving beside training: the same bytes as save(), of the state at the call, and errors on all ranks alike.
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <future>
#include <map>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/async_save.h"
#include "lockstep/checkpoint/directory.h"
#include "support/folders.h"
#include "support/run_ranks.h"

namespace lockstep::checkpoint {
namespace {

using engine::StateKind;
using engine::StateTensor;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path fresh_folder(const std::string& name) { return support::fresh_place("async-" + name) / "checkpoints"; }

// One parameter [rows, 8] that all ranks hold alike, its moments, and a scalar; all of them plus `value`.
std::vector<StateTensor> state_of(int64_t rows, const comm::World& world, double value = 0) {
  std::vector<StateTensor> state;
  const auto add = [&](const std::string& name, StateKind kind, const at::Tensor& data) {
    state.push_back({.name = name,
                     .kind = kind,
                     .global_shape = data.sizes().vec(),
                     .offset = std::vector<int64_t>(static_cast<size_t>(data.dim()), 0),
                     .local = data,
                     .replica = world.rank(),
                     .num_replicas = world.size()});
  };
  for (const auto kind : {StateKind::kParameter, StateKind{"exp_avg"}, StateKind{"exp_avg_sq"}})
    add("w", kind, at::arange(rows * 8).to(at::kFloat).add_(value).reshape({rows, 8}));
  add("half", StateKind::kParameter, at::arange(9).to(at::kFloat).add_(value).to(at::kBFloat16));
  add("scale", StateKind::kParameter, at::arange(1).to(at::kFloat).add_(value).reshape({}));
  return state;
}

// One rank of a run: a communicator of training, and a saver.
struct Rank {
  Rank(comm::World& world, const fs::path& directory, std::chrono::milliseconds stall_timeout = std::chrono::minutes(10),
       Progress progress = {})
      : training(world.all_ranks("world")),
        saver({.world = world.all_ranks("checkpoint"),
               .directory = directory,
               .stall_timeout = stall_timeout,
               .progress = std::move(progress)}) {}

  std::unique_ptr<comm::Communicator> training;
  Saver saver;
};

// Content of every file of a step, by its path in the folder.
std::map<std::string, std::string> files_of(const fs::path& step) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(step))
    if (entry.is_regular_file()) files[fs::relative(entry.path(), step).string()] = read_file(entry.path().string());
  return files;
}

void save_two(const fs::path& directory, int64_t rows, int64_t step) {
  testing::run_ranks(2, [&](comm::World& world) {
    Rank rank(world, directory);
    rank.saver.start(state_of(rows, world), {.step = step});
    rank.saver.wait();
  });
}

// Runs first: a forked child needs a parent without other threads.
TEST(AsyncSave, AKillAtAnyMomentLeavesAWholeStep) {
  const fs::path directory = fresh_folder("kill");
  save_two(directory, 64, 1);
  int64_t newest = 1;
  for (int64_t step = 2; step < 22; ++step) {
    const pid_t child = ::fork();
    if (child == 0) {
      save_two(directory, 64, step);
      ::_exit(0);
    }
    ASSERT_GT(child, 0);
    ::usleep(static_cast<useconds_t>(3000 * (step - 2)));  // from "at once" to "after it was done"
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const Latest latest = find_latest(directory);
    ASSERT_TRUE(latest.path.has_value()) << "killed in step " << step;
    EXPECT_GE(latest.step, newest) << "killed in step " << step;
    EXPECT_TRUE(latest.skipped.empty()) << latest.skipped[0].problem;
    EXPECT_EQ(verify_sums(*latest.path, read_manifest(*latest.path)), std::vector<std::string>());
    newest = latest.step;
  }
}

TEST(AsyncSave, WritesTheBytesOfSave) {
  for (const int ranks : {1, 2, 3}) {
    const fs::path directory = fresh_folder("bytes"), twin = fresh_folder("bytes-twin");
    testing::run_ranks(ranks, [&](comm::World& world) {
      Rank rank(world, directory);
      const auto state = state_of(50, world);
      const TrainState progress{.step = 7, .consumed_samples = 70, .version = "1"};
      rank.saver.start(state, progress);
      save({.directory = twin, .state = state, .train_state = progress, .world = *rank.training});
      const std::optional<SaveResult> saved = rank.saver.wait();
      ASSERT_TRUE(saved.has_value());
      EXPECT_EQ(saved->step, 7);
      EXPECT_EQ(saved->path, directory / "step-00000007");
      EXPECT_EQ(saved->bytes, read_manifest(saved->path).total_bytes());
    });
    EXPECT_EQ(files_of(directory / "step-00000007"), files_of(twin / "step-00000007")) << ranks;
  }
}

TEST(AsyncSave, WhatChangesAfterTheCallIsNotSaved) {
  const fs::path directory = fresh_folder("changes"), twin = fresh_folder("changes-twin");
  testing::run_ranks(2, [&](comm::World& world) {
    Rank rank(world, directory);
    const auto state = state_of(20000, world);
    const TrainState progress{.step = 3};
    save({.directory = twin, .state = state, .train_state = progress, .world = *rank.training});
    rank.saver.start(state, progress);
    for (int i = 0; i < 10; ++i)
      for (const StateTensor& tensor : state) at::Tensor(tensor.local).add_(1);
    rank.saver.wait();
  });
  EXPECT_EQ(files_of(directory / "step-00000003"), files_of(twin / "step-00000003"));
}

TEST(AsyncSave, ASecondSaveWaitsForTheFirst) {
  const fs::path directory = fresh_folder("second");
  testing::run_ranks(2, [&](comm::World& world) {
    Rank rank(world, directory);
    EXPECT_FALSE(rank.saver.wait().has_value());
    EXPECT_FALSE(rank.saver.start(state_of(3000, world), {.step = 1}).has_value());
    const auto first = rank.saver.start(state_of(500, world, 1), {.step = 2});
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->step, 1);
    EXPECT_TRUE(fs::exists(directory / "step-00000001"));
    const auto second = rank.saver.start(state_of(6000, world, 2), {.step = 3});  // more than the buffer of before
    EXPECT_EQ(second.value().step, 2);
    EXPECT_EQ(rank.saver.wait().value().step, 3);
    EXPECT_FALSE(rank.saver.wait().has_value());
  });
  for (int64_t step = 1; step <= 3; ++step) {
    const fs::path folder = directory / step_name(step);
    EXPECT_EQ(verify_sums(folder, read_manifest(folder)), std::vector<std::string>());
  }
}

// Training goes on with collectives of its own; all ranks learn of the end after the same step.
TEST(AsyncSave, PollTellsAllRanksAtOneStep) {
  const fs::path directory = fresh_folder("poll");
  std::vector<std::vector<int>> told(3);  // per rank: the steps after which a save had ended
  testing::run_ranks(3, [&](comm::World& world) {
    Rank rank(world, directory);
    EXPECT_FALSE(rank.saver.poll(*rank.training).has_value());
    int step = 0;
    for (int64_t save = 1; save <= 4; ++save) {
      rank.saver.start(state_of(100, world), {.step = save});
      std::optional<SaveResult> saved;
      while (!saved) {
        const at::Tensor gradient = at::arange(300).to(at::kFloat);
        rank.training->all_reduce(gradient, {.id = program::named_call("gradient")}).wait();
        ++step;
        saved = rank.saver.poll(*rank.training);
      }
      EXPECT_EQ(saved->step, save);
      told[static_cast<size_t>(world.rank())].push_back(step);
    }
  });
  EXPECT_EQ(told[0], told[1]);
  EXPECT_EQ(told[0], told[2]);
}

TEST(AsyncSave, AFullDiskIsEveryRanksErrorAndTheNextSaveWorks) {
  const fs::path directory = fresh_folder("full");
  save_two(directory, 64, 1);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  std::vector<std::string> problems(2);
  testing::run_ranks(2, [&](comm::World& world) {
    Rank rank(world, directory);
    const auto barrier = [&] { rank.training->barrier({.id = program::named_call("limit")}).wait(); };
    if (world.rank() == 0) {
      const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
      EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    }
    barrier();
    rank.saver.start(state_of(1024, world), {.step = 2});  // 16 KiB a rank and tensor
    try {
      while (!rank.saver.poll(*rank.training)) {
      }
    } catch (const CheckpointError& error) {
      problems[static_cast<size_t>(world.rank())] = error.what();
    }
    barrier();
    if (world.rank() == 0) {
      EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
      EXPECT_EQ(find_latest(directory).step, 1);
    }
    barrier();
    EXPECT_FALSE(rank.saver.wait().has_value());
    rank.saver.start(state_of(1024, world), {.step = 3});
    EXPECT_EQ(rank.saver.wait().value().step, 3);
  });
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(problems[0], HasSubstr("LS1306"));
  EXPECT_THAT(problems[0], HasSubstr("File too large"));
  EXPECT_EQ(problems[0], problems[1]);
  EXPECT_EQ(find_latest(directory).step, 3);
}

// A rank that leaves because of an error of its own: the save in flight ends on all ranks.
TEST(AsyncSave, ARankThatThrowsLetsItsSaveEnd) {
  const fs::path directory = fresh_folder("throws");
  EXPECT_THROW(testing::run_ranks(2,
                                  [&](comm::World& world) {
                                    Rank rank(world, directory);
                                    rank.saver.start(state_of(5000, world), {.step = 4});
                                    if (world.rank() == 0) throw DataError({.code = "LS1204", .what = "mine"});
                                    rank.saver.wait();
                                  }),
               DataError);
  EXPECT_EQ(find_latest(directory).step, 4);
}

// A file system that does not answer, for those who write what begins with `doing`; it answers when the test ends, and
// the test waits for the thread that was left alone.
class Hang {
 public:
  explicit Hang(std::string doing) : doing_(std::move(doing)) {}
  ~Hang() {
    answer_.set_value();
    while (!users_.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Progress progress() {
    const auto user = users_.expired() ? std::make_shared<int>() : users_.lock();
    users_ = user;
    return [user, answered = answered_, doing = doing_](const std::string& now) {
      if (now.starts_with(doing)) answered.wait();
    };
  }

 private:
  std::string doing_;
  std::promise<void> answer_;
  std::shared_future<void> answered_ = answer_.get_future().share();
  std::weak_ptr<int> users_;
};

// All ranks give the save up after the same step, and say where it hangs.
TEST(AsyncSave, AHangingSaveIsGivenUpByName) {
  for (const int ranks : {1, 3}) {
    const fs::path directory = fresh_folder("hangs");
    save_two(directory, 64, 1);
    Hang hang("syncing");
    std::vector<std::string> problems(static_cast<size_t>(ranks));
    std::vector<int> steps(static_cast<size_t>(ranks));
    testing::run_ranks(ranks, [&](comm::World& world) {
      const bool culprit = world.rank() == ranks - 1;
      Rank rank(world, directory, std::chrono::seconds(3), culprit ? hang.progress() : Progress());
      rank.saver.start(state_of(100, world), {.step = 2});
      try {
        while (!rank.saver.poll(*rank.training)) ++steps[static_cast<size_t>(world.rank())];
      } catch (const CheckpointError& error) {
        problems[static_cast<size_t>(world.rank())] = error.what();
      }
    });
    for (const std::string& problem : problems) {
      EXPECT_THAT(problem, HasSubstr(cat("LS1314: the checkpoint of step 2 hangs: rank ", ranks - 1, ": syncing ")));
      EXPECT_THAT(problem, HasSubstr("checkpoints/.tmp-step-00000002/model/shard-"));
    }
    for (const int count : steps) EXPECT_EQ(count, steps[0]);
    EXPECT_EQ(find_latest(directory).step, 1);
  }
}

TEST(AsyncSave, WaitingForAHangingSaveEndsToo) {
  const fs::path directory = fresh_folder("wait");
  Hang hang("publish");
  testing::run_ranks(1, [&](comm::World& world) {
    Rank rank(world, directory, std::chrono::milliseconds(200), hang.progress());
    rank.saver.start(state_of(100, world), {.step = 2});
    EXPECT_THAT(rank.saver.activity(), HasSubstr(" for "));
    EXPECT_THROW(rank.saver.start(state_of(100, world), {.step = 3}), CheckpointError);
  });
  EXPECT_EQ(find_latest(directory).path, std::nullopt);
}

}  // namespace
}  // namespace lockstep::checkpoint
