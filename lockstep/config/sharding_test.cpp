// The keys of sharding, offload and recomputation, and what is refused of them together.
#include "lockstep/config/test_refusals.h"

namespace lockstep::config {
namespace {

using config::testing::expect_refused;
using config::testing::layout_refusal;
using config::testing::read;
using config::testing::refusal;
using config::testing::Refused;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ShardingConfig, ReadsTheKeys) {
  const RunConfig config = read(R"(
[parallel]
zero = 3
dp_replicate = 2
dp_shard = 4
prefetch = 2
prefetch_limit = "300MiB"
reshard_after_forward = false
reshard_after_microbatch = false
reduce_precision = "bf16"
[memory]
recompute = ["none", "selective", "full"]
offload = ["optimizer", "parameters"]
device_limit = "1.5GiB"
host_limit = 4096
disk_path = "/tmp/x"
)");
  EXPECT_EQ(config.parallel.zero, 3);
  EXPECT_EQ(config.parallel.dp_replicate, 2);
  EXPECT_EQ(config.parallel.dp_shard, 4);
  EXPECT_EQ(config.parallel.prefetch, 2);
  EXPECT_EQ(config.parallel.prefetch_limit.count, 300 << 20);
  EXPECT_FALSE(config.parallel.reshard_after_forward);
  EXPECT_FALSE(config.parallel.reshard_after_microbatch);
  EXPECT_EQ(config.parallel.reduce_precision, Precision::kBf16);
  EXPECT_THAT(config.memory.recompute.list, ElementsAre(Recompute::kNone, Recompute::kSelective, Recompute::kFull));
  EXPECT_THAT(config.memory.offload.list, ElementsAre(Offloaded::kOptimizer, Offloaded::kParameters));
  EXPECT_EQ(config.memory.device_limit.count, int64_t{3} << 29);
  EXPECT_EQ(config.memory.host_limit.count, 4096);
  EXPECT_EQ(config.memory.disk_path, "/tmp/x");
  EXPECT_THAT(read("[memory]\nrecompute = \"full\"").memory.recompute.list, ElementsAre(Recompute::kFull));
  const LoadedConfig loaded =
      load_config({}, {{"memory.offload", "optimizer,activations"}, {"memory.recompute", "[none,full]"}});
  EXPECT_THAT(loaded.config.memory.offload.list, ElementsAre(Offloaded::kOptimizer, Offloaded::kActivations));
  EXPECT_THAT(loaded.config.memory.recompute.list, ElementsAre(Recompute::kNone, Recompute::kFull));
  EXPECT_EQ(load_config_text(resolved_toml(loaded), "x").config, loaded.config);
}

TEST(ShardingConfig, RefusesValues) {
  EXPECT_THAT(refusal("[parallel]\nzero = 4\n"), HasSubstr("LS1044: parallel.zero = 4 is out of range"));
  EXPECT_THAT(refusal("[parallel]\nprefetch = -1\n"), HasSubstr("LS1044"));
  EXPECT_THAT(refusal("[parallel]\nreduce_precision = \"fp8\"\n"), HasSubstr("LS1045"));
  EXPECT_THAT(refusal("[parallel]\nprefetch_limit = \"much\"\n"),
              HasSubstr("LS1046: parallel.prefetch_limit = \"much\" is not a size of memory"));
  EXPECT_THAT(refusal("[memory]\nrecompute = \"some\"\n"), HasSubstr("LS1045"));
  EXPECT_THAT(refusal("[memory]\noffload = [\"gradients\"]\n"), HasSubstr("LS1045"));
  EXPECT_THAT(refusal("[memory]\noffload = [1]\n"), HasSubstr("LS1043"));
  EXPECT_THAT(refusal("[memory]\noffload = 1\n"), HasSubstr("LS1043"));
}

TEST(ShardingConfig, DataDegrees) {
  const auto degrees = [](const std::string& text, int ranks) {
    const DataDegrees found = data_degrees(read("[parallel]\n" + text), ranks);
    return std::pair(found.replicate, found.shard);
  };
  EXPECT_EQ(degrees("", 4), std::pair(4, 1));
  EXPECT_EQ(degrees("zero = 2", 4), std::pair(1, 4));
  EXPECT_EQ(degrees("fsdp = true\ntp = 2", 8), std::pair(1, 4));
  EXPECT_EQ(degrees("zero = 1\ndp_shard = 2", 6), std::pair(3, 2));
  EXPECT_EQ(degrees("zero = 3\ndp_replicate = 2", 6), std::pair(2, 3));
  EXPECT_EQ(degrees("zero = 3\ndp_replicate = 2\ndp_shard = 2", 4), std::pair(2, 2));
  EXPECT_EQ(zero_stage(read("[parallel]\nfsdp = true")), 3);
  EXPECT_EQ(zero_stage(read("[parallel]\nzero = 2")), 2);
  EXPECT_EQ(ranks_wanted(read("[parallel]\nzero = 3\ndp_replicate = 2\ndp_shard = 3\ntp = 2")), 12);
  for (const char* fits : {"zero = 3", "fsdp = true\nzero = 3", "zero = 1\ndp_shard = 2", "zero = 3\ndp_replicate = 2",
                           "zero = 2\ndp_replicate = 2\ndp_shard = 2\ndp = 4", "dp_replicate = 4"})
    EXPECT_EQ(layout_refusal(std::string("[parallel]\n") + fits, 4), "accepted") << fits;
}

TEST(ShardingConfig, EveryProblemOfShardingIsNamed) {
  const Refused all[] = {
      {"[parallel]\nzero = 1\nfsdp = true", 4, "run.toml:2", "fsdp is zero 3, but zero = 1",
       "leave zero out, or leave fsdp out"},
      {"[parallel]\ndp_shard = 2", 4, "run.toml:2",
       "dp_shard(2) groups ranks that share out states, but zero = 0 shares out none",
       "use zero 1 or 2, or leave dp_shard out"},
      {"[parallel]\nzero = 2\ndata_parallel = \"parameter_server\"", 4, "run.toml:3",
       "a parameter server holds all states itself, but zero = 2 shares them out", "use data_parallel ring, or zero 0"},
      {"[parallel]\nreduce_precision = \"bf16\"", 4, "run.toml:2", "reduce_precision bf16 with zero 0",
       "use zero 1 or 2, or leave reduce_precision out"},
      {"[parallel]\nzero = 2\ndp_shard = 1\nreduce_precision = \"bf16\"", 4, "run.toml:4",
       "reduce_precision bf16, but dp_shard = 1: nothing is sent to the owner of a shard",
       "leave reduce_precision out"},
      {"[parallel]\nzero = 3\ndp = 4\ndp_replicate = 2\ndp_shard = 3", 4, "run.toml:5",
       "[mesh] dp_replicate(2) x dp_shard(3) = 6, but dp = 4", "use dp_shard 2"},
      {"[parallel]\nzero = 3\ndp = 4\ndp_replicate = 3\ndp_shard = 2", 4, "run.toml:5",
       "[mesh] dp_replicate(3) x dp_shard(2) = 6, but dp = 4", "use dp_replicate 2 with dp_shard 2, or dp_replicate 4 with dp_shard 1"},
      {"[parallel]\nzero = 3\ndp_shard = 3", 4, "run.toml:3", "dp(4) % dp_shard(3) = 1", " 2 or 4"},
      {"[parallel]\nzero = 3\ndp_replicate = 3", 4, "run.toml:3", "dp(4) % dp_replicate(3) = 1", " 2 or 4"},
  };
  for (const Refused& refused : all) expect_refused(refused);
}

TEST(ShardingConfig, EveryProblemOfOffloadIsNamed) {
  const Refused all[] = {
      {"[memory]\noffload = \"parameters\"", 2, "run.toml:2", "parameters on the host without the optimizer state",
       "add \"optimizer\": the update runs where the parameters live"},
      {"[parallel]\nzero = 1\n[memory]\noffload = \"optimizer,parameters\"", 2, "run.toml:4",
       "parameters on the host, but with zero 1 every rank needs all of them after the update", "use zero 3"},
      {"[parallel]\ndata_parallel = \"parameter_server\"\n[memory]\noffload = \"optimizer\"", 2, "run.toml:4",
       "a parameter server that offloads", "use data_parallel ring"},
      {"[memory]\noffload = \"activations\"", 2, "run.toml:2",
       "offload moves the inputs of layers that full recomputation keeps, but no block has recompute full",
       "use recompute full, or leave \"activations\" out"},
      {"[model]\nlayers = 3\n[memory]\nrecompute = [\"none\", \"full\"]", 2, "run.toml:4",
       "recompute lists 2 blocks, but model.layers = 3", "name one for every block, or one word for all"},
      {"[memory]\noffload = \"optimizer\"\ndisk_path = \"/tmp/x\"", 2, "run.toml:3",
       "disk_path takes what is beyond host_limit, and there is none", "set memory.host_limit"},
      {"[memory]\nhost_limit = \"1GiB\"", 2, "run.toml:2", "host_limit bounds what is offloaded, and nothing is",
       "set memory.offload"},
  };
  for (const Refused& refused : all) expect_refused(refused);
  for (const char* fits : {"offload = [\"optimizer\"]", "offload = [\"optimizer\", \"parameters\"]",
                           "offload = \"activations\"\nrecompute = \"full\"",
                           "offload = \"optimizer\"\nhost_limit = \"1GiB\"\ndisk_path = \"/tmp/x\""})
    EXPECT_EQ(layout_refusal(std::string("[memory]\n") + fits, 2), "accepted") << fits;
}

}  // namespace
}  // namespace lockstep::config
