// Ranks are processes here: they must be told apart by their ids.
#include "lockstep/launch/region_handoff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr milliseconds kLong{60000};

// Each test meets in a place of its own.
std::string job() {
  return cat("test ", getpid(), " ", testing::UnitTest::GetInstance()->current_test_info()->name());
}

// A process that runs `part` and ends with what it returns; errors are kept as text.
class Rank {
 public:
  explicit Rank(const std::function<int()>& part) : output_(memfd_create("output", MFD_CLOEXEC)) {
    pid_ = fork();
    if (pid_ != 0) return;
    int code = 1;
    try {
      code = part();
    } catch (const std::exception& error) {
      (void)!write(output_, error.what(), strlen(error.what()));
    }
    _exit(code);
  }
  ~Rank() {
    if (pid_ > 0) end();
    close(output_);
  }
  pid_t pid() const { return pid_; }
  void end() {
    kill(pid_, SIGKILL);
    code();
  }
  int code() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // What it said, at its end.
  std::string error() {
    EXPECT_NE(code(), 0);
    std::string text(static_cast<size_t>(lseek(output_, 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(output_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }

 private:
  int output_;
  pid_t pid_;
};

// Waits until a process has so many sockets.
void wait_for_sockets(pid_t pid, int wanted) {
  for (int found = 0; found < wanted; usleep(1000)) {
    found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(cat("/proc/", pid, "/fd"))) {
      std::error_code gone;
      found += std::filesystem::read_symlink(entry.path(), gone).string().starts_with("socket:");
    }
  }
}

std::string error_of(const RegionHandoff& handoff) {
  try {
    share_region(handoff);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Every rank writes its number into the region and waits for those of the others.
int write_and_see(const RegionHandoff& handoff) {
  const SharedRegion region = share_region(handoff);
  auto* numbers = reinterpret_cast<std::atomic<int>*>(region.data());
  numbers[handoff.rank].store(handoff.rank + 1);
  for (int rank = 0; rank < handoff.world_size; ++rank)
    while (numbers[rank].load() != rank + 1) usleep(1000);
  return 0;
}

TEST(RegionHandoff, GivesAllRanksTheSameMemory) {
  const std::string here = job();
  const auto play = [&](int rank) {
    return write_and_see({.job = here, .token = "secret", .rank = rank, .world_size = 3, .deadline = kLong});
  };
  Rank two([&] { return play(2); });
  Rank one([&] { return play(1); });
  Rank zero([&] { return play(0); });
  EXPECT_EQ(zero.code(), 0);
  EXPECT_EQ(one.code(), 0);
  EXPECT_EQ(two.code(), 0);
}

TEST(RegionHandoff, OneRankMeetsNobody) {
  EXPECT_EQ(write_and_see({.job = job(), .deadline = kLong}), 0);
}

TEST(RegionHandoff, NamesTheRanksThatNeverCome) {
  const std::string here = job();
  Rank one([&] {
    share_region({.job = here, .rank = 1, .world_size = 4, .deadline = kLong});
    return 0;
  });
  EXPECT_THAT(error_of({.job = here, .world_size = 4, .deadline = milliseconds(300)}),
              AllOf(HasSubstr("LS3123"), HasSubstr("ranks 2, 3 never came")));
  EXPECT_THAT(one.error(), HasSubstr("ranks 2, 3 never came"));  // all leave with the same reason
}

TEST(RegionHandoff, NamesRank0WhereItNeverComes) {
  EXPECT_THAT(error_of({.job = job(), .rank = 1, .world_size = 2, .deadline = milliseconds(100)}),
              AllOf(HasSubstr("LS3123"), HasSubstr("rank 0 never came; rank 1 has waited")));
}

TEST(RegionHandoff, ARankThatEndsMeanwhileIsNoticedAtOnce) {
  const std::string here = job();
  Rank one([&] {
    share_region({.job = here, .rank = 1, .world_size = 3, .deadline = kLong});
    return 0;
  });
  const pid_t pid = one.pid();
  Rank zero([&] {
    share_region({.job = here, .world_size = 3, .deadline = kLong});
    return 0;
  });
  wait_for_sockets(zero.pid(), 2);  // its own and rank 1's
  one.end();
  EXPECT_THAT(zero.error(), AllOf(HasSubstr("LS3123"), HasSubstr(cat("rank 1 (process ", pid, ") ended before all"))));
}

TEST(RegionHandoff, ADeadRank0LeavesNothingThatALaterJobWouldMeet) {
  const std::string here = job();
  {
    Rank stale([&] {
      share_region({.job = here, .world_size = 2, .deadline = kLong});
      return 0;
    });
    wait_for_sockets(stale.pid(), 1);
    stale.end();
  }
  Rank one([&] { return write_and_see({.job = here, .rank = 1, .world_size = 2, .deadline = kLong}); });
  Rank zero([&] { return write_and_see({.job = here, .world_size = 2, .deadline = kLong}); });
  EXPECT_EQ(zero.code(), 0);
  EXPECT_EQ(one.code(), 0);
}

TEST(RegionHandoff, TurnsStrangersAwayAndGoesOn) {
  const std::string here = job();
  Rank zero([&] { return write_and_see({.job = here, .token = "ours", .world_size = 2, .deadline = kLong}); });
  EXPECT_THAT(error_of({.job = here, .token = "theirs", .rank = 1, .world_size = 2, .deadline = kLong}),
              AllOf(HasSubstr("LS3124"), HasSubstr("rank 1 brought another job token")));
  EXPECT_THAT(error_of({.job = here, .token = "ours", .rank = 1, .world_size = 3, .deadline = kLong}),
              AllOf(HasSubstr("LS3005"), HasSubstr("rank 1 was told of 3 ranks, rank 0 of 2")));
  EXPECT_EQ(write_and_see({.job = here, .token = "ours", .rank = 1, .world_size = 2, .deadline = kLong}), 0);
  EXPECT_EQ(zero.code(), 0);
}

TEST(RegionHandoff, TwoRanksOfOneNumberAreRefused) {
  const std::string here = job();
  Rank zero([&] {
    share_region({.job = here, .world_size = 3, .deadline = kLong});
    return 0;
  });
  Rank one([&] {
    share_region({.job = here, .rank = 1, .world_size = 3, .deadline = kLong});
    return 0;
  });
  Rank again([&] {
    share_region({.job = here, .rank = 1, .world_size = 3, .deadline = kLong});
    return 0;
  });
  Rank two([&] {
    usleep(200'000);  // both should come before; one that comes later finds nobody, and fails as well
    share_region({.job = here, .rank = 2, .world_size = 3, .deadline = kLong});
    return 0;
  });
  EXPECT_EQ(zero.code(), 0);
  EXPECT_EQ(two.code(), 0);
  EXPECT_EQ(one.code() + again.code(), 1);
}

TEST(RegionHandoff, TwoRank0OfOneJobAreRefused) {
  const std::string here = job();
  Rank zero([&] {
    share_region({.job = here, .world_size = 2, .deadline = kLong});
    return 0;
  });
  wait_for_sockets(zero.pid(), 1);
  Rank one([&] { return write_and_see({.job = here, .rank = 1, .world_size = 3, .deadline = kLong}); });
  EXPECT_THAT(one.error(), HasSubstr("LS3005"));  // so rank 0 listens
  EXPECT_THAT(error_of({.job = here, .world_size = 2, .deadline = kLong}),
              AllOf(HasSubstr("LS3005"), HasSubstr("another rank 0")));
}

}  // namespace
}  // namespace lockstep::launch
