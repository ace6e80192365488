#include "lockstep/train/stop_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "support/run_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::ElementsAre;

TEST(StopSignals, EachIsARequestUntilTheListenerEnds) {
  const auto before = signal(SIGINT, SIG_DFL);
  const auto hangup_before = signal(SIGHUP, SIG_DFL);
  for (const auto& [number, request] :
       {std::pair(SIGTERM, Request::kRequeue), {SIGUSR1, Request::kRequeue}, {SIGHUP, Request::kRequeue}, {SIGINT, Request::kInterrupt}}) {
    const StopSignals signals(false);
    EXPECT_EQ(signals.request(), Request::kNone);
    raise(number);
    EXPECT_EQ(signals.request(), request);
    raise(number);  // below a launcher: still alive
  }
  EXPECT_EQ(signal(SIGINT, before), SIG_DFL);
  EXPECT_EQ(signal(SIGHUP, hangup_before), SIG_DFL);
}

TEST(StopSignals, WhatNohupOrTheShellIgnoresStaysIgnored) {
  for (const int number : {SIGINT, SIGHUP}) {
    const auto before = signal(number, SIG_IGN);
    {
      const StopSignals signals(true);
      raise(number);
      EXPECT_EQ(signals.request(), Request::kNone);
    }
    EXPECT_EQ(signal(number, before), SIG_IGN);
  }
}

TEST(StopSignals, TheSecondEndsTheProcess) {
  for (const auto& [second, code] : {std::pair(SIGTERM, 143), {SIGUSR1, 143}, {SIGINT, 130}}) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGINT, SIG_DFL);
      const StopSignals signals(true);
      raise(SIGTERM);
      raise(second);
      _exit(1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), code);
  }
}

TEST(SwitchFiles, AreTakenOnceAndStopWins) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / cat("lockstep-switch-", getpid());
  std::filesystem::create_directories(folder);
  EXPECT_EQ(take_switch_file(folder), Request::kNone);
  write_file(folder / "save", "");
  EXPECT_EQ(take_switch_file(folder), Request::kSave);
  EXPECT_EQ(take_switch_file(folder), Request::kNone);
  write_file(folder / "save", "");
  write_file(folder / "stop", "");
  EXPECT_EQ(take_switch_file(folder), Request::kStop);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

// What each step of a run ends with, where rank r is asked for requests[r][i] behind step i + 1.
std::vector<Request> agreed(const std::vector<std::vector<Request>>& requests, const std::vector<bool>& pending) {
  std::vector<Request> found;
  std::mutex mutex;
  lockstep::testing::run_ranks(static_cast<int>(requests.size()), [&](comm::World& world) {
    const auto group = world.all_ranks("world");
    size_t step = 0;
    RequestAgreement agreement(*group, [&] { return requests[static_cast<size_t>(world.rank())][step]; });
    std::vector<Request> mine;
    for (; step < pending.size(); ++step) mine.push_back(agreement.agreed(static_cast<int64_t>(step) + 1, pending[step]));
    const std::lock_guard lock(mutex);
    if (found.empty()) found = mine;
    EXPECT_EQ(mine, found) << "rank " << world.rank();
  });
  return found;
}

constexpr Request kNone = Request::kNone, kSave = Request::kSave, kStop = Request::kStop, kRequeue = Request::kRequeue;

TEST(RequestAgreement, TheLargestOfAnyRankCounts) {
  EXPECT_THAT(agreed({{kNone, kSave, kSave}, {kNone, kNone, kRequeue}}, {false, false, false}),
              ElementsAre(kNone, kSave, kRequeue));
  EXPECT_THAT(agreed({{kStop}}, {false}), ElementsAre(kStop));
}

TEST(RequestAgreement, WhileAStepIsPendingWhatWasAskedBehindTheOneBeforeCounts) {
  EXPECT_THAT(agreed({{kNone, kNone, kSave, kNone, kNone}, {kNone, kNone, kNone, kNone, kNone}}, {true, true, true, true, true}),
              ElementsAre(kNone, kNone, kNone, kSave, kNone));
}

// What is in flight is waited for, and counts: it was asked behind the step before.
TEST(RequestAgreement, ASettledStepTakesWhatIsInFlight) {
  EXPECT_THAT(agreed({{kSave, kStop, kStop}, {kNone, kNone, kNone}}, {true, false, false}), ElementsAre(kNone, kSave, kStop));
}

TEST(Requests, HaveTheirExitCodes) {
  EXPECT_EQ(exit_code(Request::kSave), ExitCode::kOk);
  EXPECT_EQ(exit_code(Request::kRequeue), ExitCode::kSaved);
  EXPECT_EQ(exit_code(Request::kStop), ExitCode::kOk);
  EXPECT_EQ(exit_code(Request::kInterrupt), ExitCode::kInterrupted);
  EXPECT_FALSE(stops(Request::kSave));
  EXPECT_TRUE(stops(Request::kRequeue));
}

}  // namespace
}  // namespace lockstep::train
