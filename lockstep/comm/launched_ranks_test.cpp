// Ranks as processes that the local launcher starts: this program starts copies of itself, which talk over the region
// that they inherit.
// A program of its own: it is the program that its ranks run.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/launch/identity.h"
#include "lockstep/launch/local_launcher.h"

namespace lockstep::comm {
namespace {

// What a rank does, by the first argument. The launcher's other ranks have 60 s before a missing peer is too late.
void play(const std::string& part, World& world) {
  const auto group = world.communicator({0, 1, 2}, "world");
  for (int step = 0; step < 5; ++step) {
    const at::Tensor tensor = at::full({10001}, world.rank() + 1.0, at::kFloat);
    group->all_reduce(tensor, {.id = program::named_call("grad")}).wait();
    for (int64_t i = 0; i < tensor.numel(); ++i)
      if (tensor.const_data_ptr<float>()[i] != 6) throw InternalError("wrong sum");
    if (step == 2 && part == "kill" && world.rank() == 2) raise(SIGKILL);
    if (step == 2 && part == "throw" && world.rank() == 1) throw DataError({.code = "LS1200", .what = "no such file"});
  }
}

int run_rank(const std::vector<std::string>& given) {
  std::vector<std::string> arguments = given;
  const launch::Identity me = launch::take_identity(arguments);
  const auto region = std::make_shared<const launch::SharedRegion>(launch::SharedRegion::from_descriptor(me.region_fd));
  SharedMemoryWorld world(region, me.rank, me.world_size);
  try {
    play(arguments.at(0), world);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    world.abort(error.what());
    return static_cast<int>(error.exit_code());
  }
}

struct Outcome {
  int code = 0;
  std::string report;
};

Outcome launch_ranks(const std::string& part) {
  const int report = memfd_create("report", MFD_CLOEXEC);
  const int code = launch::launch_local({.ranks = 3, .arguments = {part}, .error_fd = report});
  std::string text(static_cast<size_t>(lseek(report, 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(report, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  close(report);
  return {code, text};
}

TEST(LaunchedRanks, ComputeTogether) {
  const Outcome outcome = launch_ranks("sum");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.report, "");
}

TEST(LaunchedRanks, AreReportedByTheOneThatFailed) {
  const Outcome outcome = launch_ranks("throw");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kData));
  EXPECT_EQ(outcome.report, "[rank 1] error LS1200: no such file\nrank 1 ended with exit code 7\n");
}

TEST(LaunchedRanks, NoticeAKilledPeer) {
  const Outcome outcome = launch_ranks("kill");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeerLost));
  EXPECT_EQ(outcome.report, "rank 2 was ended by signal 9 (Killed)\n");
}

}  // namespace
}  // namespace lockstep::comm

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  for (const std::string& argument : arguments)
    if (argument == "--rank") return lockstep::comm::run_rank(arguments);
  testing::InitGoogleTest(&count, values);
  return RUN_ALL_TESTS();
}
