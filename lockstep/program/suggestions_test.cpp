// Every way out that a refusal offers is taken: it gives a layout, or leaves fewer problems, until there are none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/program/job.h"

namespace lockstep::program {
namespace {

using config::LayoutProblem;
using config::Suggestion;
using config::Trial;
using ::testing::HasSubstr;
using ::testing::Not;

// What is wrong with the job; empty where it has a layout.
std::vector<LayoutProblem> problems_of(const Trial& trial, std::string* message = nullptr) {
  config::LoadedConfig loaded = trial.loaded;
  try {
    layout_of(loaded, trial.world_size);
  } catch (const config::RefusedConfig& refused) {
    if (message) *message = refused.what();
    return refused.problems();
  }
  return {};
}

struct Count {
  int taken = 0;
  int without = 0;  // problems that offer nothing to take
};

// Takes each way out of each problem, and from there the first of each, to the end.
void take_all(const Trial& trial, Count& count, bool every = true) {
  const std::vector<LayoutProblem> problems = problems_of(trial);
  for (const LayoutProblem& problem : problems) {
    if (problem.ways.empty()) ++count.without;
    EXPECT_FALSE(problem.way_out.empty()) << problem.what;
    for (const Suggestion& way : problem.ways) {
      SCOPED_TRACE(cat(problem.what, " -> ", text_of(way)));
      const std::optional<Trial> changed = config::with_changes(trial, way);
      ASSERT_TRUE(changed);
      EXPECT_LT(problems_of(*changed).size(), problems.size());
      ++count.taken;
      if (!::testing::Test::HasFailure()) take_all(*changed, count, false);
      if (!every) break;
    }
    if (!every) break;
  }
}

Trial job(const std::string& text, int ranks) { return {.loaded = config::load_config_text(text, "run.toml"), .world_size = ranks}; }

std::string way_out_of(const std::string& text, int ranks) {
  const std::vector<LayoutProblem> problems = problems_of(job(text, ranks));
  std::vector<std::string> ways;
  for (const LayoutProblem& problem : problems) ways.push_back(problem.way_out);
  return join(ways, " | ");
}

TEST(Suggestions, ADegreeSuitsAllThatItDivides) {
  // 12 heads, 4 key/value heads, 8 ranks: 6 divides neither 4 nor 8, 12 is more than there are.
  EXPECT_EQ(way_out_of("[model]\npreset = \"llama-test\"\n[parallel]\ntp = 8\n", 8), "use tp 4 or 2");
  EXPECT_EQ(way_out_of("[model]\npreset = \"llama-test\"\n[parallel]\ntp = 8\ndp = 1\n", 8), "use tp 4 with -n 4");
  EXPECT_EQ(way_out_of("[model]\npreset = \"llama-test\"\nlayers = 4\n[parallel]\npp = 8\n", 8), "use pp 4 or 2");
}

TEST(Suggestions, WhatFollowsOfAChangeIsSaid) {
  EXPECT_EQ(way_out_of("[model]\npreset = \"llama-test\"\n[parallel]\ntp = 5\n[train]\nglobal_batch = 8\nmicro_batch = 8\n", 5),
            "use tp 4 with -n 4");
  EXPECT_EQ(way_out_of("[model]\npreset = \"llama-test\"\n[parallel]\nvirtual_stages = 2\n", 4),
            "leave virtual_stages out");
}

constexpr const char* kPresets[] = {"gpt2-test", "llama-test", "gpt2-10m"};
constexpr const char* kLines[] = {
    "parallel.tp=2", "parallel.tp=3", "parallel.tp=5", "parallel.tp=8", "parallel.tp=12", "parallel.pp=2", "parallel.pp=3",
    "parallel.pp=7", "parallel.dp=2", "parallel.dp=3", "parallel.dp=5", "parallel.zero=1", "parallel.zero=2", "parallel.zero=3",
    "parallel.fsdp=true", "parallel.dp_shard=2", "parallel.dp_shard=3", "parallel.dp_replicate=2", "parallel.dp_replicate=4",
    "parallel.data_parallel=parameter_server", "parallel.reduce_precision=bf16", "parallel.schedule=interleaved",
    "parallel.schedule=zb-v", "parallel.schedule=gpipe", "parallel.virtual_stages=2", "parallel.virtual_stages=3",
    "parallel.layers_per_stage=1*3", "parallel.layers_per_stage=2,0,1", "parallel.post_validation=on", "train.global_batch=7",
    "train.global_batch=12", "train.global_batch=200000000", "train.micro_batch=3", "train.micro_batch=5", "train.seq_len=600",
    "train.steps=20", "train.nonfinite=skip", "optimizer.warmup_steps=5000", "optimizer.min_lr=1", "memory.offload=parameters",
    "memory.offload=optimizer", "memory.offload=activations,optimizer", "memory.recompute=none,full", "memory.recompute=selective",
    "memory.host_limit=1GiB", "memory.disk_path=spill", "trace.steps=10-2000", "trace.steps=x", "model.kv_heads=6", "model.layers=1",
    "model.heads=6", "model.max_seq_len=32", "model.vocab_size=100"};

TEST(Suggestions, AllOfManyRefusalsCanBeTaken) {
  std::mt19937 random(11);
  Count count;
  int refused = 0;
  for (int i = 0; i < 200 && !HasFailure(); ++i) {
    std::vector<config::Override> flags = {{"model.preset", kPresets[random() % 3]}, {"data.tokenizer", ""}};
    if (flags[0].value == "gpt2-10m") flags.push_back({"model.vocab_size", "8192"});
    std::string said;
    for (unsigned lines = 1 + random() % 4; lines > 0; --lines) {
      const std::string line = kLines[random() % std::size(kLines)];
      flags.push_back({line.substr(0, line.find('=')), line.substr(line.find('=') + 1)});
      said += " --" + line;
    }
    const int ranks = static_cast<int>(1 + random() % 12);
    SCOPED_TRACE(cat("-n ", ranks, " --model.preset=", flags[0].value, said));
    const Trial trial{.loaded = config::load_config({}, flags), .world_size = ranks};
    try {
      refused += !problems_of(trial).empty();
      take_all(trial, count);
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.message().code, ::testing::StartsWith("LS111"));  // sizes of the model that contradict each other
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(count.taken, 300);
  EXPECT_LT(count.without, count.taken / 20);
}

}  // namespace
}  // namespace lockstep::program
