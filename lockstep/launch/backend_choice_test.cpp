#include "lockstep/launch/backend_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "lockstep/base/error.h"

namespace lockstep::launch {
namespace {

using config::Backend;
using testing::AllOf;
using testing::HasSubstr;

config::RunConfig configured(Backend backend, config::Device device = config::Device::kCpu) {
  config::RunConfig config;
  config.parallel.backend = backend;
  config.train.device = device;
  return config;
}

Identity four_ranks(Launcher launcher, int local_size) {
  return {
      .rank = 1, .world_size = 4, .local_rank = 1, .local_size = local_size, .source = "a test", .launcher = launcher};
}

std::string refusal(const Identity& identity, const config::RunConfig& config, std::optional<int> gpus = {}) {
  try {
    return "chose " + choose_backend(identity, config, gpus).why;
  } catch (const EnvironmentError& error) {
    return error.what();
  }
}

TEST(ChooseBackend, AutoFollowsWhereTheRanksAre) {
  const auto choose = [](const Identity& identity) {
    return choose_backend(identity, configured(Backend::kAuto)).backend;
  };
  EXPECT_EQ(choose({}), Backend::kSharedMemory);
  for (const Launcher launcher : {Launcher::kLockstep, Launcher::kFlags, Launcher::kTorchrun, Launcher::kOpenMpi,
                                  Launcher::kPmi, Launcher::kSlurm})
    EXPECT_EQ(choose(four_ranks(launcher, 4)), Backend::kSharedMemory);
  EXPECT_EQ(choose(four_ranks(Launcher::kOpenMpi, 2)), Backend::kMpi);
}

TEST(ChooseBackend, AutoIsNcclOnGpus) {
  const config::RunConfig config = configured(Backend::kAuto, config::Device::kCuda);
  EXPECT_EQ(choose_backend(four_ranks(Launcher::kLockstep, 4), config).backend, Backend::kNccl);
  EXPECT_EQ(choose_backend(four_ranks(Launcher::kSlurm, 2), config).backend, Backend::kNccl);
  EXPECT_EQ(choose_backend({}, config).backend, Backend::kSharedMemory);  // one rank has nobody to talk to
}

TEST(ChooseBackend, RanksThatWouldShareAGpuAreToldHow) {
  const config::RunConfig taken = configured(Backend::kAuto, config::Device::kCuda);
  const config::RunConfig asked = configured(Backend::kNccl, config::Device::kCuda);
  for (const config::RunConfig& config : {taken, asked}) {
    EXPECT_EQ(choose_backend(four_ranks(Launcher::kLockstep, 4), config, 4).backend, Backend::kNccl);
    EXPECT_EQ(choose_backend(four_ranks(Launcher::kSlurm, 2), config, 2).backend, Backend::kNccl);
    EXPECT_THAT(refusal(four_ranks(Launcher::kLockstep, 4), config, 1),
                AllOf(HasSubstr("LS3121"), HasSubstr("4 ranks are on this host with 1 GPU\n"),
                      HasSubstr("start 1 rank on this host; or set parallel.backend = \"shared_memory\"")));
    EXPECT_THAT(refusal(four_ranks(Launcher::kOpenMpi, 3), config, 2),
                AllOf(HasSubstr("3 ranks are on this host with 2 GPUs"), HasSubstr("parallel.backend = \"mpi\"")));
    EXPECT_EQ(choose_backend({}, config, 1).backend, Backend::kSharedMemory);  // one rank
  }
  const config::RunConfig shared = configured(Backend::kSharedMemory, config::Device::kCuda);
  EXPECT_EQ(choose_backend(four_ranks(Launcher::kLockstep, 4), shared, 1).backend, Backend::kSharedMemory);
}

TEST(ChooseBackend, WhatIsAskedForIsTakenOrRefused) {
  const auto choose = [](const Identity& identity, Backend backend) {
    return choose_backend(identity, configured(backend)).backend;
  };
  EXPECT_EQ(choose(four_ranks(Launcher::kOpenMpi, 4), Backend::kMpi), Backend::kMpi);
  EXPECT_EQ(choose(four_ranks(Launcher::kSlurm, 2), Backend::kMpi), Backend::kMpi);
  EXPECT_EQ(choose(four_ranks(Launcher::kPmi, 0), Backend::kSharedMemory), Backend::kSharedMemory);  // the user knows

  EXPECT_THAT(
      refusal(four_ranks(Launcher::kTorchrun, 2), configured(Backend::kSharedMemory)),
      AllOf(HasSubstr("LS3121"), HasSubstr("rank 1 of 4 (a test)"), HasSubstr("2 of 4 ranks are on this host")));
  EXPECT_THAT(refusal(four_ranks(Launcher::kLockstep, 4), configured(Backend::kMpi)),
              AllOf(HasSubstr("LS3121"), HasSubstr("mpirun -n 4")));
  EXPECT_THAT(refusal(four_ranks(Launcher::kLockstep, 4), configured(Backend::kNccl)),
              AllOf(HasSubstr("LS3121"), HasSubstr("train.device = \"cpu\"")));
}

TEST(ChooseBackend, SeveralHostsWithoutABackendAreRefusedWithTheWayOut) {
  for (const Launcher launcher : {Launcher::kTorchrun, Launcher::kSlurm, Launcher::kPods, Launcher::kFlags})
    EXPECT_THAT(refusal(four_ranks(launcher, 2), configured(Backend::kAuto)),
                AllOf(HasSubstr("LS3121"), HasSubstr("2 of 4 ranks are on this host"), HasSubstr("mpirun")));
  EXPECT_THAT(refusal(four_ranks(Launcher::kPmi, 0), configured(Backend::kAuto)),
              AllOf(HasSubstr("nothing says how many ranks"), HasSubstr("--parallel.backend=shared_memory")));
}

}  // namespace
}  // namespace lockstep::launch
