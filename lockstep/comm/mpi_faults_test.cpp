// Ranks over MPI that disagree, throw, never come, stop or die: each test starts copies of this program under mpirun and
// reads what they say.
// A program of its own: mpirun starts it.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/mpi_world.h"
#include "support/mpirun.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor ones(int64_t numel) {
  return at::full({numel}, 1.0, at::kFloat);
}

// ---- What a rank does, by the name of the part.

std::vector<int> everyone(const World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  return ranks;
}

void play(const std::string& part, World& world) {
  const int rank = world.rank();
  const auto group = world.communicator(everyone(world), "dp");
  group->all_reduce(ones(10), {.id = program::named_call("grad")}).wait();
  if (part == "sizes") group->all_reduce(ones(100 + rank), {.id = program::named_call("grad")}).wait();
  if (part == "busy") {
    // Rank 2 is busy with something else; ranks 0 and 1 wait for it, 0 only by way of 1.
    if (rank == 2) std::this_thread::sleep_for(milliseconds(4000));
    group->all_reduce(ones(10), {.id = program::named_call("loss")}).wait();
  }
  if (part == "stopped") {
    if (rank == 1) raise(SIGSTOP);
    group->all_reduce(ones(10), {.id = program::named_call("loss")}).wait();
  }
  if (part == "chain") {
    const auto to = rank > 0 ? world.communicator({rank, rank - 1}, "pp") : nullptr;
    const auto from = rank < 2 ? world.communicator({rank + 1, rank}, "pp") : nullptr;
    if (rank == 2) raise(SIGSTOP);
    from->recv(ones(1), 0, {.id = program::named_call("recv_b")}).wait();
  }
  if (part == "left" && rank == 0) group->recv(ones(1), 1, {.id = program::named_call("act")}).wait();
  if (part == "killed") {
    if (rank == 2) raise(SIGKILL);
    for (;;) group->all_reduce(ones(100000), {.id = program::named_call("loss")}).wait();
  }
  if (part == "throws") {
    // Rank 0 has a call in flight when it fails; the exception closes its communicator nevertheless.
    if (rank != 1) group->all_reduce(ones(1000000), {.id = program::named_call("loss")});
    if (rank == 0) throw DataError({.code = "LS1200", .what = "no such file"});
    if (rank == 1) std::this_thread::sleep_for(milliseconds(500));
    group->barrier({.id = program::named_call("end")}).wait();
  }
  // Much longer than the deadline, which is of waits for a rank that gives no sign of life.
  if (part == "slow end" && rank == 1) std::this_thread::sleep_for(milliseconds(2000));
}

milliseconds deadline_of(const std::string& part, int rank) {
  if (part == "chain") return milliseconds(rank == 0 ? 500 : 60000);
  if (part == "slow end") return milliseconds(1000);
  return milliseconds(part == "busy" || part == "stopped" ? 500 : 60000);
}

int run_rank(const launch::Identity& me, const std::string& part) {
  // As the program does: mpirun's SIGTERM, when another rank has failed, does not end it in the middle of its message.
  signal(SIGTERM, SIG_IGN);
  std::unique_ptr<World> world;
  try {
    if (part == "never starts" && me.rank == 1) {
      std::this_thread::sleep_for(milliseconds(2000));
      return 0;
    }
    const MpiOptions options{.deadline = deadline_of(part, me.rank),
                             .start_deadline = milliseconds(part == "never starts" ? 1000 : 60000)};
    world = join_mpi(part == "wrong rank" ? me.rank + 1 : me.rank, me.world_size, options);
    play(part, *world);
    std::fprintf(stderr, "rank %d is done\n", me.rank);
  } catch (const std::exception& error) {
    // In one write, so that ranks do not mix.
    std::fprintf(stderr, "%s", cat("rank ", me.rank, " says: ", error.what(), "\n").c_str());
    if (world) world->abort(error.what());
    const auto* known = dynamic_cast<const Error*>(&error);
    return static_cast<int>(known ? known->exit_code() : ExitCode::kInternal);
  }
  world.reset();
  std::fprintf(stderr, "rank %d has left\n", me.rank);
  return 0;
}

// ---- What is expected of it.

struct Outcome {
  int code = 0;
  std::string text;
};

Outcome mpirun(int ranks, const std::string& part) {
  std::string command = "timeout -k 5 90";
  for (const std::string& word : testing::mpirun_command(ranks, {part})) command += cat(" '", word, "'");
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  Outcome outcome;
  for (int byte; (byte = std::fgetc(pipe)) != EOF;) outcome.text += static_cast<char>(byte);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return outcome;
}

TEST(MpiFaults, DifferentCallsAreShownToBothSides) {
  const Outcome outcome = mpirun(2, "sizes");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kInternal)) << outcome.text;
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("all_reduce #2 'grad' of 100 fp32"), HasSubstr("all_reduce #2 'grad' of 101 fp32")));
}

TEST(MpiFaults, TheRankThatNeverCameIsNamedWithWhatItDidLast) {
  const Outcome outcome = mpirun(3, "busy");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeerLost)) << outcome.text;
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("LS3002: rank 2 never entered all_reduce #2 'loss' of group dp[0,1,2]"),
                    HasSubstr("last seen when it left all_reduce #1 'grad'"), HasSubstr("has waited"),
                    HasSubstr("its last calls on this group"), HasSubstr("still inside")));
}

TEST(MpiFaults, AStoppedRankDoesNotAnswer) {
  const Outcome outcome = mpirun(2, "stopped");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeerLost)) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("LS3002: rank 1 does not answer (stopped, or its host is lost); all_reduce #2 "
                                      "'loss' of group dp[0,1] lacks it"));
}

TEST(MpiFaults, AStoppedRankIsNamedByOneThatWaitsForItsNeighbour) {
  const Outcome outcome = mpirun(3, "chain");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeerLost)) << outcome.text;
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("rank 0 says: error LS3002: rank 2 does not answer (stopped, or its host is lost); recv #1 'recv_b' "
                              "from rank 2 of rank 1 lacks it"),
                    HasSubstr("rank 0 waits for rank 1 (recv #1 'recv_b' from rank 1), which waits for rank 2 (recv #1 "
                              "'recv_b' from rank 2)")));
}

TEST(MpiFaults, ARankThatLeftIsNoticedLongBeforeTheDeadline) {
  const Outcome outcome = mpirun(2, "left");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.text,
              HasSubstr("rank 1 has closed the group; recv #1 'act' from rank 1 of group dp[0,1] lacks it; last seen "
                        "when it left all_reduce #1 'grad'"));
}

TEST(MpiFaults, AKilledRankIsNamedByTheOthers) {
  const Outcome outcome = mpirun(3, "killed");
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.code, 124) << "it hung";
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("LS3002: rank 2 (process "), HasSubstr("died; all_reduce #")));
}

TEST(MpiFaults, TheReasonOfARankThatFailedReachesItsPeers) {
  const Outcome outcome = mpirun(3, "throws");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kData)) << outcome.text;
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("rank 0 says: error LS1200: no such file"),
                    HasSubstr("LS3003: rank 0 stopped the job while rank 2 was in all_reduce #2 'loss' of group "
                              "dp[0,1,2]:\n  error LS1200: no such file")));
}

TEST(MpiFaults, ARankThatEndsLaterThanTheDeadlineIsWaitedFor) {
  const Outcome outcome = mpirun(2, "slow end");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("rank 0 has left"), HasSubstr("rank 1 has left")));
}

TEST(MpiFaults, ARankThatNeverInitialisesMpi) {
  const Outcome outcome = mpirun(2, "never starts");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.text, HasSubstr("rank 0 says: error LS3002: MPI_Init has waited"));
}

TEST(MpiFaults, RanksThatMpiNumbersOtherwise) {
  const Outcome outcome = mpirun(2, "wrong rank");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kEnvironment)) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("LS3031: this process is rank 1 of 2, but for MPI (Open MPI"),
                                  HasSubstr("it is rank 0 of 2")));
}

}  // namespace
}  // namespace lockstep::comm

int main(int count, char** values) {
  const lockstep::launch::Identity me = lockstep::launch::detect_identity(lockstep::testing::environment());
  if (me.world_size > 1) return lockstep::comm::run_rank(me, values[1]);
  testing::InitGoogleTest(&count, values);
  return RUN_ALL_TESTS();
}
