#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/launch/identity.h"

namespace lockstep::launch {
namespace {

using Hosts = std::vector<std::string>;

std::string refusal(const Environment& environment) {
  try {
    detect_identity(environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(DetectIdentity, NothingIsOneRank) {
  EXPECT_EQ(detect_identity({{"PATH", "/bin"}}), Identity{});
  EXPECT_EQ(detect_identity({{"RANK", "3"}}), Identity{});  // alone it says nothing
}

TEST(DetectIdentity, Torchrun) {
  const Identity expected{.rank = 5,
                          .world_size = 8,
                          .local_rank = 1,
                          .local_size = 4,
                          .source =
                              "torchrun: RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=n1 "
                              "MASTER_PORT=29500",
                          .master_address = "n1",
                          .master_port = 29500,
                          .launcher = Launcher::kTorchrun,
                          .job = "n1:29500 run7",
                          .attempt = "2",
                          .agent_store = true};
  EXPECT_EQ(detect_identity({{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "n1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "run7"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
            expected);
}

TEST(DetectIdentity, OpenMpiWinsOverSlurmAndPmix) {
  const Identity identity = detect_identity({{"OMPI_COMM_WORLD_RANK", "2"},
                                             {"OMPI_COMM_WORLD_SIZE", "4"},
                                             {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                             {"PMIX_RANK", "2"},
                                             {"SLURM_STEP_ID", "0"},
                                             {"SLURM_PROCID", "1"},
                                             {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(identity.rank, 2);
  EXPECT_EQ(identity.world_size, 4);
  EXPECT_EQ(identity.local_rank, 0);
  EXPECT_EQ(identity.local_size, 2);
  EXPECT_TRUE(identity.source.starts_with("Open MPI: OMPI_COMM_WORLD_RANK=2 ")) << identity.source;
}

TEST(DetectIdentity, Mpich) {
  const Identity identity =
      detect_identity({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(identity.rank, 3);
  EXPECT_EQ(identity.world_size, 4);
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_EQ(identity.local_size, 2);
}

TEST(DetectIdentity, SlurmTask) {
  const Identity identity = detect_identity({{"SLURM_JOB_ID", "40123"},
                                             {"SLURM_STEP_ID", "0"},
                                             {"SLURM_PROCID", "9"},
                                             {"SLURM_NTASKS", "16"},
                                             {"SLURM_LOCALID", "1"},
                                             {"SLURM_NTASKS_PER_NODE", "8"},
                                             {"SLURM_JOB_NODELIST", "n[03-04],x"},
                                             {"PMIX_RANK", "9"}});
  EXPECT_EQ(identity.rank, 9);
  EXPECT_EQ(identity.world_size, 16);
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_EQ(identity.local_size, 8);
  EXPECT_EQ(identity.master_address, "n03");
  EXPECT_EQ(identity.master_port, 15000 + 40123 % 17000);
  EXPECT_EQ(identity.job, "40123.0");
  EXPECT_EQ(identity.launcher, Launcher::kSlurm);
}

// Two hosts with two tasks and one with one.
Environment uneven_slurm(const std::string& procid, const std::string& localid, const std::string& nodeid) {
  return {{"SLURM_JOB_ID", "7"},           {"SLURM_STEP_ID", "1"},
          {"SLURM_PROCID", procid},        {"SLURM_NTASKS", "5"},
          {"SLURM_LOCALID", localid},      {"SLURM_NODEID", nodeid},
          {"SLURM_TASKS_PER_NODE", "8"},   {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
          {"SLURM_JOB_NODELIST", "n[1-3]"}};
}

TEST(DetectIdentity, SlurmHostsMayHaveDifferentNumbersOfTasks) {
  EXPECT_EQ(detect_identity(uneven_slurm("1", "1", "0")).local_size, 2);
  EXPECT_EQ(detect_identity(uneven_slurm("4", "0", "2")).local_size, 1);
  EXPECT_NE(refusal(uneven_slurm("4", "0", "3")).find("host 3 of 3"), std::string::npos);
  EXPECT_NE(refusal(uneven_slurm("4", "1", "2")).find("local rank 1 of 1"), std::string::npos);
}

TEST(DetectIdentity, SrunWithAPmiPluginIsSlurm) {
  Environment environment = uneven_slurm("1", "1", "0");
  environment["PMI_RANK"] = "1";
  environment["PMI_SIZE"] = "5";
  EXPECT_EQ(detect_identity(environment).launcher, Launcher::kSlurm);
  environment["PMI_SIZE"] = "3";  // an mpirun within the task
  EXPECT_EQ(detect_identity(environment).launcher, Launcher::kPmi);
}

TEST(DetectIdentity, WhatIsNotToldStaysUnknown) {
  EXPECT_EQ(detect_identity({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}).local_size, 0);
  EXPECT_EQ(detect_identity({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).local_size, 1);
}

TEST(DetectIdentity, TheHostsOfTheStepComeBeforeThoseOfTheJob) {
  const Environment environment = {{"SLURM_STEP_ID", "0"},
                                   {"SLURM_PROCID", "0"},
                                   {"SLURM_NTASKS", "2"},
                                   {"SLURM_JOB_NODELIST", "n[1-4]"},
                                   {"SLURM_STEP_NODELIST", "n[3-4]"}};
  EXPECT_EQ(detect_identity(environment).master_address, "n3");
}

TEST(DetectIdentity, AShellInASlurmJobIsNoTask) {
  EXPECT_EQ(detect_identity({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), Identity{});
}

TEST(DetectIdentity, KubernetesCountsPods) {
  const Identity identity =
      detect_identity({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}});
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.world_size, 3);
  EXPECT_EQ(identity.master_address, "job-master-0");
  EXPECT_EQ(identity.master_port, 23456);
  EXPECT_EQ(identity.launcher, Launcher::kPods);
  EXPECT_EQ(identity.local_size, 1);
}

TEST(DetectIdentity, RefusesContradictionsNamingTheVariables) {
  EXPECT_NE(refusal({{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}})
                .find("OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_SIZE=4: rank 4 of 4"),
            std::string::npos);
  EXPECT_NE(refusal({{"RANK", "0"}, {"LOCAL_RANK", "0"}}).find("WORLD_SIZE is missing"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}).find("RANK is not a whole number"),
            std::string::npos);
  EXPECT_NE(refusal({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "2"}})
                .find("local rank 2 of 2"),
            std::string::npos);
  EXPECT_NE(refusal({{"PMIX_RANK", "1"}}).find("PMIX_RANK=1"), std::string::npos);
}

TEST(TaskCounts, AreExpanded) {
  EXPECT_EQ(expand_task_counts("4"), (std::vector<int>{4}));
  EXPECT_EQ(expand_task_counts("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  for (const char* bad : {"", "2(x", "2(x3", "(x3)", "2x3", "a"})
    EXPECT_THROW(expand_task_counts(bad), ConfigError) << bad;
}

TEST(NodeList, IsExpanded) {
  EXPECT_EQ(expand_node_list("n[01-03,7]"), (Hosts{"n01", "n02", "n03", "n7"}));
  EXPECT_EQ(expand_node_list("a,b[9-11]-ib,c"), (Hosts{"a", "b9-ib", "b10-ib", "b11-ib", "c"}));
  EXPECT_EQ(expand_node_list("host"), (Hosts{"host"}));
  for (const char* wrong : {"", "n[", "n[3-1]", "n[a]", "n]1[", "a,,b", "n[1][2]"})
    EXPECT_THROW(expand_node_list(wrong), ConfigError) << wrong;
}

}  // namespace
}  // namespace lockstep::launch
