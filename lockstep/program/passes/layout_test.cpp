// From a configuration to a layout: what is said of it, and what is refused.
#include "lockstep/program/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/config/load.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

arch::ModelConfig model_of(int64_t layers) {
  config::ModelSection section;
  section.preset = "gpt2-test";
  section.layers = layers;
  return arch::resolve_model(section, 0);
}

config::LoadedConfig loaded(const std::string& parallel, int64_t microbatches = 4) {
  config::LoadedConfig loaded = config::load_config_text("[parallel]\n" + parallel, "run.toml");
  loaded.config.train.micro_batch = 2;
  loaded.config.train.seq_len = 16;
  loaded.config.train.global_batch = 2 * microbatches;
  return loaded;
}

std::string refusal(const config::LoadedConfig& loaded, int ranks) {
  try {
    make_layout(loaded, model_of(4), ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Layout, DescribesPipelines) {
  const auto text = [](const std::string& parallel, int ranks) {
    return describe(make_layout(loaded(parallel), model_of(4), ranks));
  };
  EXPECT_EQ(text("pp = 2", 2), "pp 2 (1f1b), 4 microbatches x 2 sequences x 16 tokens, fp32");
  EXPECT_THAT(text("pp = 2\nschedule = \"gpipe\"", 4), StartsWith("pp 2 (gpipe) x dp 2 (ring), 2 microbatches"));
  EXPECT_THAT(text("pp = 2\nschedule = \"interleaved\"", 2), StartsWith("pp 2 (interleaved, 2 stages a rank), 4"));
  EXPECT_THAT(text("pp = 2\ntp = 2\nzero = 3", 8), StartsWith("pp 2 (1f1b) x dp 2 (zero 3) x tp 2 (sequence parallel), 2"));
  EXPECT_THAT(text("", 1), StartsWith("1 rank, 4"));
  EXPECT_EQ(text("cp = 2", 2), "cp 2 (ring, zigzag), 4 microbatches x 2 sequences x 16 tokens, fp32");
  EXPECT_THAT(text("cp = 2\ncontext = \"all_gather\"\ncontext_split = \"contiguous\"", 4),
              StartsWith("dp 2 (ring) x cp 2 (all_gather, contiguous), 2"));
  EXPECT_THAT(text("cp = 4\ncontext = \"2d\"\ncontext_inner = 2\ntp = 2\nzero = 2", 8),
              StartsWith("cp 4 (2d 2 x 2, zigzag, zero 2) x tp 2 (sequence parallel), 4"));
  EXPECT_THAT(text("cp = 2\ndata_parallel = \"parameter_server\"", 2), StartsWith("cp 2 (ring, zigzag, parameter server), 4"));
}

// Flash attention has no wider heads; what runs in fp32 or on the CPU has.
TEST(Layout, RefusesHeadsThatFlashAttentionHasNot) {
  const auto refusal_of = [](const config::ModelSection& section, config::Device device, config::Precision precision) -> std::string {
    config::LoadedConfig job = loaded("");
    job.config.train.device = device, job.config.train.precision = precision;
    try {
      make_layout(job, arch::resolve_model(section, 0), 1);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  using config::Device, config::Precision;
  config::ModelSection wide{.preset = "llama-test"};
  wide.head_size = 258;
  EXPECT_THAT(refusal_of(wide, Device::kCuda, Precision::kBf16), HasSubstr("head_size(258) is above 256"));
  EXPECT_EQ(refusal_of(wide, Device::kCuda, Precision::kFp32), "accepted");
  EXPECT_EQ(refusal_of(wide, Device::kCpu, Precision::kBf16), "accepted");
  wide.head_size = 256;
  EXPECT_EQ(refusal_of(wide, Device::kCuda, Precision::kBf16), "accepted");
  config::ModelSection latent{.preset = "deepseek-test"};
  latent.qk_nope_head_dim = 256, latent.qk_rope_head_dim = 8, latent.v_head_dim = 257;
  EXPECT_THAT(refusal_of(latent, Device::kCuda, Precision::kBf16),
              ::testing::AllOf(HasSubstr("qk_nope_head_dim(256) + qk_rope_head_dim(8) = 264 is above 256"), HasSubstr("v_head_dim(257) is above 256")));
  EXPECT_EQ(refusal_of(latent, Device::kCuda, Precision::kFp32), "accepted");
}

TEST(Layout, TakesTheStagesAsGiven) {
  const Layout layout = make_layout(loaded("pp = 3\nlayers_per_stage = [0, 3, 1]"), model_of(4), 3);
  // Embedding, blocks 1 to 4, head.
  EXPECT_THAT(layout.pipeline.first_layer, ElementsAre(0, 1, 4, 6));
  EXPECT_THAT(layout.layers_of(0), ElementsAre(0));
  EXPECT_THAT(layout.layers_of(1), ElementsAre(1, 2, 3));
  EXPECT_THAT(layout.layers_of(2), ElementsAre(4, 5));
  const Layout v = make_layout(loaded("pp = 2\nschedule = \"zb-v\"\nlayers_per_stage = \"1*4\""), model_of(4), 2);
  EXPECT_THAT(v.layers_of(0), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(v.layers_of(1), ElementsAre(2, 3));
}

TEST(Layout, NamesWhereAProblemOfTheModelCameFrom) {
  EXPECT_THAT(refusal(loaded("pp = 8"), 8),
              HasSubstr("\n  run.toml:2  pp(8) = 8 stages, but embedding + model.layers(4) + head = 6 layers  use pp 4 or 2"));
  EXPECT_THAT(refusal(loaded("pp = 2\nlayers_per_stage = [2, 3]"), 2), HasSubstr("\n  run.toml:3  layers_per_stage"));
}

TEST(Layout, WhatTheScheduleRefusesStandsBesideTheRest) {
  const std::string message = refusal(loaded("pp = 2\nschedule = \"interleaved\"\nlayers_per_stage = \"2*4\"", 3), 2);
  EXPECT_THAT(message, HasSubstr("(2 problems, nothing was started)"));
  EXPECT_THAT(message, ::testing::ContainsRegex("\n  run.toml:4 +layers_per_stage = \"2[*]4\" has 8 blocks, but model.layers = 4"));
  EXPECT_THAT(message, HasSubstr("microbatches(3) % pp(2) = 1"));
  EXPECT_THAT(message, HasSubstr("use global_batch 4 or 8"));
}

}  // namespace
}  // namespace lockstep::program
