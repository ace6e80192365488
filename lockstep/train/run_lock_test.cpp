#include "lockstep/train/run_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "support/folders.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

fs::path fresh(const std::string& name) { return support::fresh_place("lock-" + name); }

// A process that ends at once, and whose exit code nobody has fetched yet.
LockHolder dead_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  LockHolder holder = LockHolder::self();
  holder.pid = child;
  holder.started = 1;
  siginfo_t ended{};
  ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  return holder;
}

LockHolder other_host() { return {.host = "n2", .pid = 4711, .started = 99, .boot = "another boot", .pid_space = "pid:[1]"}; }

// A lock as `holder` leaves it when it dies.
void leave_lock(const fs::path& run, const LockHolder& holder, int number = 1, int beats = 5) {
  fs::create_directories(run / "lock");
  write_file(run / "lock" / cat("holder-", number), LockContent{.holder = holder, .beats = beats}.text());
}

std::string refusal(RunLock& lock) {
  try {
    while (!lock.try_take()) {
    }
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.message().code, "LS1315");
    return error.what();
  }
  return "it was taken";
}

TEST(RunLock, IsOneRunsAtATime) {
  const fs::path run = fresh("one");
  {
    RunLock first(run);
    EXPECT_TRUE(first.try_take());
    EXPECT_EQ(first.took_over(), "");
    RunLock second(run);
    EXPECT_THAT(refusal(second), AllOf(HasSubstr(LockHolder::self().host), HasSubstr(cat("process ", ::getpid())),
                                       HasSubstr(run.string())));
    first.check();
  }
  RunLock third(run);  // given back
  EXPECT_TRUE(third.try_take());
  EXPECT_EQ(third.took_over(), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(run / "lock"), {}), 1);
}

TEST(RunLock, OfADeadProcessOfThisHostIsTakenOverAtOnce) {
  const LockHolder dead = dead_process();  // a zombie, or gone: it cannot train
  for (const bool fetched : {false, true}) {
    if (fetched) ::waitpid(static_cast<pid_t>(dead.pid), nullptr, 0);
    const fs::path run = fresh("dead");
    leave_lock(run, dead);
    RunLock lock(run, {.pause = [](milliseconds) { FAIL() << "it waited"; }});
    EXPECT_TRUE(lock.try_take());
    EXPECT_THAT(lock.took_over(), HasSubstr(cat("process ", dead.pid)));
  }
}

TEST(RunLock, AUsedPidIsAnotherProcess) {
  const fs::path run = fresh("reused");
  LockHolder earlier = LockHolder::self();
  earlier.started -= 1;
  leave_lock(run, earlier);
  RunLock lock(run);
  EXPECT_TRUE(lock.try_take());
}

TEST(RunLock, OfAnotherHostIsTakenOverWhenItsCounterStandsStill) {
  const fs::path run = fresh("still");
  leave_lock(run, other_host());
  milliseconds waited{0};
  RunLock lock(run, {.patience = milliseconds(3000), .pause = [&](milliseconds time) { waited += time; }});
  EXPECT_FALSE(lock.try_take());
  EXPECT_THAT(lock.watched(), AllOf(HasSubstr("process 4711 on n2"), HasSubstr("3.0 s")));
  while (!lock.try_take()) {
  }
  EXPECT_EQ(waited, milliseconds(3000));
  EXPECT_THAT(lock.took_over(), HasSubstr("no sign of life"));
  EXPECT_EQ(lock.watched(), "");
}

TEST(RunLock, OfAnotherHostIsRefusedWhenItsCounterMoves) {
  const fs::path run = fresh("moves");
  leave_lock(run, other_host());
  int looks = 0;
  RunLock lock(run, {.patience = milliseconds(30000), .pause = [&](milliseconds) {
                       if (++looks == 4) leave_lock(run, other_host(), 1, 6);
                     }});
  EXPECT_THAT(refusal(lock), HasSubstr("process 4711 on n2"));
  EXPECT_EQ(looks, 4);
}

TEST(RunLock, ANewHolderIsWatchedAnew) {
  const fs::path run = fresh("anew");
  leave_lock(run, other_host());
  int looks = 0;
  RunLock lock(run, {.patience = milliseconds(2000), .pause = [&](milliseconds) {
                       if (++looks == 3) leave_lock(run, other_host(), 2);
                     }});
  while (!lock.try_take()) {
  }
  EXPECT_EQ(looks, 3 + 4);
}

TEST(RunLock, AFileThatNobodyHasSignedIsWatched) {
  const fs::path run = fresh("empty");
  fs::create_directories(run / "lock");
  write_file(run / "lock/holder-3", "");
  int looks = 0;
  RunLock lock(run, {.patience = milliseconds(1000), .pause = [&](milliseconds) { ++looks; }});
  while (!lock.try_take()) {
  }
  EXPECT_EQ(looks, 2);
}

TEST(RunLock, OfTwoThatTakeOverOneWins) {
  const fs::path run = fresh("two");
  leave_lock(run, dead_process());
  // The second comes between the look and the take of the first, and has the lock and gives it back, or holds it.
  RunLock second(run);
  RunLock first(run, {.before_take = [&, once = true]() mutable {
                        if (!std::exchange(once, false)) return;
                        EXPECT_TRUE(second.try_take());
                      }});
  EXPECT_FALSE(first.try_take());
  EXPECT_THAT(refusal(first), HasSubstr("LS1315"));
  second.check();
}

TEST(RunLock, WhoComesLateTakesNothingFromTheOneAfterTheNext) {
  const fs::path run = fresh("late");
  leave_lock(run, dead_process());
  std::unique_ptr<RunLock> third;
  RunLock first(run, {.before_take = [&, once = true]() mutable {
                        if (!std::exchange(once, false)) return;
                        for (int other = 0; other < 2; ++other) {
                          RunLock lock(run);
                          EXPECT_TRUE(lock.try_take());
                        }
                        // Now holder-3 says that it is free, and holder-2 is gone.
                        third = std::make_unique<RunLock>(run);
                      }});
  EXPECT_FALSE(first.try_take());
  EXPECT_TRUE(third->try_take());
  EXPECT_FALSE(fs::exists(run / "lock/holder-2"));
  EXPECT_THAT(refusal(first), HasSubstr("LS1315"));
  third->check();
}

TEST(RunLock, WhoWasSilentForTooLongLearnsOfIt) {
  const fs::path run = fresh("silent");
  RunLock silent(run, {.beat = milliseconds(1)});
  EXPECT_TRUE(silent.try_take());
  silent.check();
  leave_lock(run, other_host(), 2);
  for (;;) {  // its next beat finds the other one
    try {
      silent.check();
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.message().code, "LS1316");
      EXPECT_THAT(error.what(), HasSubstr("process 4711 on n2"));
      break;
    }
  }
  // What it gives back in the end is its own lock, not the other's.
  EXPECT_FALSE(LockContent::parse(read_file(run / "lock/holder-2"))->released);
}

TEST(RunLock, ALookFindsItBeforeTheNextBeat) {
  const fs::path run = fresh("look");
  RunLock silent(run, {.beat = std::chrono::hours(1)});
  silent.look();  // not held yet
  EXPECT_TRUE(silent.try_take());
  silent.look();
  leave_lock(run, other_host(), 2);
  silent.check();
  EXPECT_THROW(silent.look(), CheckpointError);
  // A folder that somebody has removed is nobody's.
  fs::remove_all(run / "lock");
  silent.look();
}

TEST(RunLock, AFolderThatCannotBeWrittenIsSaid) {
  const fs::path run = fresh("file");
  write_file(run, "");
  RunLock lock(run);
  EXPECT_THROW(lock.try_take(), EnvironmentError);
}

}  // namespace
}  // namespace lockstep::train
