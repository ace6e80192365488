#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/identity.h"
#include "lockstep/launch/local_launcher.h"
#include "lockstep/launch/shared_region.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

struct Outcome {
  int code = 0;
  std::string report;
};

// Runs `script` as every rank; in it $rank, $size and $fd are the identity.
Outcome run(int ranks, const std::string& script, milliseconds grace = milliseconds(5000),
            std::filesystem::path logs = {}, int max_restarts = 0, std::filesystem::path system_root = "/") {
  const int report = memfd_create("report", MFD_CLOEXEC);
  const std::string prologue = "rank=$2; size=$4; fd=$6; ";
  const int code = launch_local({.ranks = ranks,
                                 .arguments = {"-c", prologue + script, "sh"},
                                 .program = "/bin/sh",
                                 .log_dir = std::move(logs),
                                 .grace = grace,
                                 .error_fd = report,
                                 .max_restarts = max_restarts,
                                 .system_root = std::move(system_root)});
  std::string text(static_cast<size_t>(lseek(report, 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(report, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  close(report);
  return {code, text};
}

// Ended; its new parent may not have noticed yet (state Z).
bool gone(pid_t pid) {
  std::ifstream stat(cat("/proc/", pid, "/stat"));
  std::string number, name, state;
  return !(stat >> number >> name >> state) || state == "Z";
}

TEST(Launcher, GivesEveryRankItsIdentityAndTheRegion) {
  const Outcome outcome = run(3, "test $size = 3 && test $rank -lt 3 && test -e /proc/self/fd/$fd");
  EXPECT_EQ(outcome.code, 0) << outcome.report;
  EXPECT_EQ(outcome.report, "");
}

TEST(Launcher, ReturnsTheCodeOfTheRankThatFailedAndShowsItsLastLines) {
  const Outcome outcome = run(3, "if [ $rank = 2 ]; then echo 'error LS1203: no file' >&2; exit 7; fi");
  EXPECT_EQ(outcome.code, 7);
  EXPECT_EQ(outcome.report, "[rank 2] error LS1203: no file\nrank 2 ended with exit code 7\n");
}

TEST(Launcher, BlamesTheCauseNotItsEcho) {
  // Rank 0 loses its peer and is gone first; rank 1 is why.
  const Outcome outcome = run(2, "[ $rank = 0 ] && exit 6; sleep 0.2; exit 5");
  EXPECT_EQ(outcome.code, 5);
  EXPECT_EQ(outcome.report, "rank 1 ended with exit code 5\n");
}

TEST(Launcher, NamesTheSignal) {
  const Outcome outcome = run(2, "[ $rank = 1 ] && kill -9 $$; exit 6");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeerLost));
  EXPECT_EQ(outcome.report, "rank 1 was ended by signal 9 (Killed)\n");
}

// What the kernel counts is made up: the rank writes it down before it ends itself.
TEST(Launcher, SaysSoWhereMemoryWasShort) {
  const std::filesystem::path root = std::filesystem::temp_directory_path() / cat("lockstep-short-", ::getpid());
  std::filesystem::create_directories(root / "proc");
  const std::string vmstat = (root / "proc/vmstat").string();
  std::ofstream(vmstat) << "oom_kill 2\n";
  const std::string script = cat("[ $rank = 1 ] && echo oom_kill 3 > ", vmstat, " && kill -9 $$; exit 6");
  const Outcome outcome = run(2, script, milliseconds(5000), {}, 0, root);
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kOutOfMemory));
  EXPECT_EQ(outcome.report,
            "error LS4004: rank 1 was ended by signal 9 (Killed): the kernel ended 1 process of this machine because memory "
            "was short (oom_kill 2 -> 3)\n  `lockstep show memory` says what the ranks need, and what to change\n");
  // A lost rank all the same.
  const Outcome again = run(1, cat("grep -q 4 ", vmstat, " && exit 0; echo oom_kill 4 > ", vmstat, "; kill -9 $$"), milliseconds(5000), {}, 1, root);
  EXPECT_EQ(again.code, 0) << again.report;
  EXPECT_EQ(run(1, "kill -9 $$", milliseconds(5000), {}, 0, root).code, static_cast<int>(ExitCode::kPeerLost));
  std::filesystem::remove_all(root);
}

TEST(Launcher, EndsTheOthersAfterTheGracePeriod) {
  // Rank 1 ignores SIGTERM: only SIGKILL ends it and its own child.
  const Outcome outcome =
      run(2, "[ $rank = 0 ] && exit 3; trap '' TERM; sleep 300 & wait; sleep 300", milliseconds(50));
  EXPECT_EQ(outcome.code, 3);
}

TEST(Launcher, KeepsTheOutputOfOtherRanksInTheirLogs) {
  const std::filesystem::path logs = std::filesystem::temp_directory_path() / cat("lockstep-logs-", getpid());
  std::filesystem::create_directories(logs);
  EXPECT_EQ(run(2, "echo out; echo err >&2", milliseconds(100), logs).code, 0);
  EXPECT_EQ(read_file(logs / "rank-0001.out"), "out\nerr\n");
  std::filesystem::remove_all(logs);
}

TEST(Launcher, NamesAProgramThatCannotBeRun) {
  EXPECT_EQ(launch_local({.ranks = 1, .program = "/no/such/program"}), static_cast<int>(ExitCode::kEnvironment));
}

// A launcher in a process of its own. The constructor returns when every rank has called `ready` in `script`.
class LauncherProcess {
 public:
  LauncherProcess(int ranks, const std::string& script)
      : folder_(std::filesystem::temp_directory_path() / cat("lockstep-launch-", getpid(), "-", rand())) {
    std::filesystem::create_directories(folder_);
    pid_ = fork();
    if (pid_ == 0) {
      signal(SIGINT, SIG_DFL);  // whatever started the test
      _exit(run(ranks, cat("ready() { echo $$ > ", folder_.string(), "/$rank; }; ", script)).code);
    }
    for (int rank = 0; rank < ranks; ++rank) ranks_.push_back(read_pid(rank));
  }
  ~LauncherProcess() { std::filesystem::remove_all(folder_); }
  pid_t pid() const { return pid_; }
  const std::vector<pid_t>& ranks() const { return ranks_; }
  int wait_for_code() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t read_pid(int rank) const {
    pid_t pid = 0;
    for (int attempt = 0; attempt < 1000 && pid == 0; ++attempt) {
      std::ifstream(folder_ / std::to_string(rank)) >> pid;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return pid;
  }
  std::filesystem::path folder_;
  pid_t pid_ = -1;
  std::vector<pid_t> ranks_;
};

TEST(Launcher, PassesSignalsOn) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const LauncherProcess launcher(2, "trap 'exit 75' TERM USR1; ready; while :; do sleep 0.05; done");
    kill(launcher.pid(), signal);
    EXPECT_EQ(launcher.wait_for_code(), static_cast<int>(ExitCode::kSaved)) << signal;
  }
}

TEST(Launcher, ASignalBeforeThereIsAHandlerEndsTheRanks) {
  for (const auto& [signal, code] : {std::pair(SIGTERM, 143), {SIGUSR1, 143}, {SIGINT, 130}}) {
    const LauncherProcess launcher(2, "ready; while :; do sleep 0.05; done");
    kill(launcher.pid(), signal);
    EXPECT_EQ(launcher.wait_for_code(), code);
    for (const pid_t rank : launcher.ranks()) EXPECT_TRUE(gone(rank));
  }
}

TEST(Launcher, AQuestionEndsNobody) {
  const LauncherProcess launcher(2, "trap 'exit 75' TERM; ready; while :; do sleep 0.05; done");
  kill(launcher.pid(), SIGUSR2);
  std::this_thread::sleep_for(milliseconds(50));
  kill(launcher.pid(), SIGTERM);
  EXPECT_EQ(launcher.wait_for_code(), static_cast<int>(ExitCode::kSaved));
}

TEST(Launcher, StoppedRanksAreNoFailure) {
  const Outcome outcome = run(2, "exit 75");
  EXPECT_EQ(outcome.code, 75);
  EXPECT_EQ(outcome.report, "");
}

TEST(Launcher, StartsAgainAfterALostRankAndOnlyThen) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / cat("lockstep-again-", getpid());
  std::filesystem::create_directories(folder);
  const std::string once =
      cat("if [ $rank = 1 ] && mkdir ", (folder / "once").string(), " 2>/dev/null; then kill -9 $$; fi");
  const Outcome mended = run(2, once, milliseconds(5000), {}, 2);
  EXPECT_EQ(mended.code, 0);
  EXPECT_EQ(mended.report, "rank 1 was ended by signal 9 (Killed)\nstarting all ranks again (1 of 2 restarts)\n");
  const Outcome lost = run(1, "kill -9 $$", milliseconds(5000), {}, 1);
  EXPECT_EQ(lost.code, static_cast<int>(ExitCode::kPeerLost));
  EXPECT_EQ(lost.report,
            "rank 0 was ended by signal 9 (Killed)\nstarting all ranks again (1 of 1 restarts)\n"
            "rank 0 was ended by signal 9 (Killed)\n");
  EXPECT_EQ(run(2, "exit 5", milliseconds(5000), {}, 3).report, "rank 0 ended with exit code 5\n");
  std::filesystem::remove_all(folder);
}

TEST(Launcher, EndsAtOnceOnASecondSignal) {
  const LauncherProcess launcher(2, "trap '' INT; ready; while :; do sleep 0.05; done");
  kill(launcher.pid(), SIGINT);
  std::this_thread::sleep_for(milliseconds(100));
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait_for_code(), static_cast<int>(ExitCode::kInterrupted));
  for (const pid_t rank : launcher.ranks()) EXPECT_TRUE(gone(rank));
}

TEST(Launcher, LeavesNoOrphanWhenItIsKilled) {
  const LauncherProcess launcher(2, "ready; while :; do sleep 0.05; done");
  kill(launcher.pid(), SIGKILL);
  EXPECT_EQ(launcher.wait_for_code(), -SIGKILL);
  for (const pid_t rank : launcher.ranks()) {
    for (int attempt = 0; attempt < 1000 && !gone(rank); ++attempt) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_TRUE(gone(rank));
  }
}

TEST(Identity, GoesThroughTheFlagsAndLeavesTheOtherArguments) {
  const Identity identity{.rank = 2,
                          .world_size = 4,
                          .local_rank = 2,
                          .local_size = 4,
                          .region_fd = 5,
                          .source = "lockstep -n 4",
                          .launcher = Launcher::kLockstep};
  std::vector<std::string> arguments = {"train", "run.toml"};
  for (const std::string& flag : identity_flags(identity)) arguments.push_back(flag);
  arguments.push_back("--train.steps=3");
  EXPECT_EQ(take_identity(arguments), identity);
  EXPECT_EQ(arguments, (std::vector<std::string>{"train", "run.toml", "--train.steps=3"}));
  EXPECT_EQ(take_identity(arguments), Identity{});
}

TEST(Launcher, StartsTheRanksOfOneHostOfSeveral) {
  const int report = memfd_create("report", MFD_CLOEXEC);
  Identity first{.rank = 4, .world_size = 6, .launcher = Launcher::kPods};
  first.master_address = "pod-0";
  first.master_port = 29500;
  const std::string check =
      "test \"$*\" = \"--rank $2 --world-size 6 --region-fd $6 --local-rank $(($2 - 4)) --local-size 2 "
      "--rendezvous=[pod-0]:29500\" && test $2 -ge 4 && test $2 -lt 6";
  EXPECT_EQ(
      launch_local(
          {.ranks = 2, .arguments = {"-c", check, "sh"}, .program = "/bin/sh", .error_fd = report, .first = first}),
      0);
  // A rank is called by its number in the world.
  EXPECT_EQ(launch_local({.ranks = 2,
                          .arguments = {"-c", "test $2 != 5 || exit 7", "sh"},
                          .program = "/bin/sh",
                          .error_fd = report,
                          .first = first}),
            7);
  std::string text(static_cast<size_t>(lseek(report, 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(report, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  close(report);
  EXPECT_EQ(text, "rank 5 ended with exit code 7\n");
}

TEST(Identity, OfARankOfSeveralHostsGoesThroughTheFlags) {
  Identity identity{
      .rank = 5, .world_size = 6, .local_rank = 1, .local_size = 2, .region_fd = 7, .source = "lockstep -n 2"};
  identity.launcher = Launcher::kLockstep;
  identity.master_address = "fe80::1";
  identity.master_port = 29500;
  std::vector<std::string> arguments = identity_flags(identity);
  identity.job = "[fe80::1]:29500";
  EXPECT_EQ(take_identity(arguments), identity);
  EXPECT_TRUE(arguments.empty());
}

TEST(Identity, FlagsWithoutARegionAreOfAnybodysRanks) {
  std::vector<std::string> arguments = {"train",    "--rank=1",     "--world-size", "4",
                                        "run.toml", "--rendezvous", "n1:29500"};
  const Identity identity = take_identity(arguments);
  EXPECT_EQ(identity.launcher, Launcher::kFlags);
  EXPECT_TRUE(identity.on_one_host());
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_EQ(identity.master_address, "n1");
  EXPECT_EQ(identity.master_port, 29500);
  EXPECT_EQ(identity.source, "flags: --rank 1 --world-size 4 --rendezvous n1:29500");
  EXPECT_EQ(arguments, (std::vector<std::string>{"train", "run.toml"}));
}

TEST(Identity, RefusesHalfOfItAndNonsense) {
  for (std::vector<std::string> arguments :
       {std::vector<std::string>{"--rank", "1"},
        {"--rank", "1", "--world-size", "2"},
        {"--rank", "1", "--world-size", "2", "--rendezvous", "n1"},
        {"--rank", "1", "--world-size", "2", "--rendezvous", "n1:0"},
        {"--rank", "1", "--world-size", "2", "--rendezvous", ":7"},
        {"--rank", "1", "--world-size", "2", "--rendezvous", "n1:7", "--local-rank", "0"},
        {"--rank", "1", "--world-size", "2", "--rendezvous", "n1:7", "--local-rank", "1", "--local-size", "1"},
        {"--rendezvous", "n1:7"},
        {"--rank", "x", "--world-size", "2", "--region-fd", "3"},
        {"--rank", "2", "--world-size", "2", "--region-fd", "3"},
        {"--rank"}})
    EXPECT_THROW(take_identity(arguments), ConfigError) << join(arguments, " ");
}

TEST(SharedRegion, IsSharedByProcessesAndRefusesWhatIsNone) {
  const SharedRegion region = SharedRegion::memfd(region_bytes(2));
  const pid_t child = fork();
  if (child == 0) {
    SharedRegion again = SharedRegion::from_descriptor(dup(region.descriptor()));
    again.data()[100] = std::byte{42};
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(region.data()[100], std::byte{42});
  EXPECT_EQ(region.data()[101], std::byte{0});
  EXPECT_THROW(SharedRegion::from_descriptor(9999), EnvironmentError);
}

TEST(SharedRegion, HasRoomForTheRingsOfManyGroups) {
  for (const int ranks : {1, 2, 8, 64, 256})
    EXPECT_GE(region_bytes(ranks), 32 * ring_bytes(ranks) * ranks * ranks) << ranks;
  EXPECT_EQ(ring_bytes(2), 1 << 20);
  EXPECT_EQ(ring_bytes(256), 1 << 16);
}

}  // namespace
}  // namespace lockstep::launch
