// Experts of a configuration as a layout, and what they refuse of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/config/load.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::program {
namespace {

using ::testing::HasSubstr;

config::LoadedConfig loaded(const std::string& text) {
  return config::load_config_text("[model]\npreset = \"mixtral-test\"\n[train]\nseq_len = 16\nmicro_batch = 1\nglobal_batch = 120\n" + text, "run.toml");
}

Layout layout_of(const std::string& text, int ranks) {
  const config::LoadedConfig config = loaded(text);
  return make_layout(config, arch::resolve_model(config.config.model, 0, config.config.moe), ranks);
}

std::string refusal(const std::string& text, int ranks) {
  try {
    layout_of(text, ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ExpertLayout, HasWhatTheConfigurationSays) {
  const Layout layout = layout_of("[parallel]\nep = 2\netp = 2\n[moe]\nbalance = \"bias\"\nbias_rate = 0.5\nz_coefficient = 0.25", 8);
  EXPECT_EQ(layout.ep, 2);
  EXPECT_EQ(layout.etp, 2);
  EXPECT_EQ(layout.moe.balance, config::Balance::kBias);
  EXPECT_EQ(layout.moe.z_coefficient, 0.25);
  EXPECT_EQ(layout.optimizer.bias_rate, 0.5);
  EXPECT_TRUE(layout.model.experts.router_bias);
}

// The preset alone says that there are experts, and how wide they are.
TEST(ExpertLayout, IsJudgedWithTheSizesOfTheModel) {
  EXPECT_THAT(refusal("[parallel]\nep = 3", 3), HasSubstr("model.experts(8) % ep(3) = 2"));
  EXPECT_THAT(refusal("[parallel]\netp = 5", 5), HasSubstr("model.expert_ffn(96) % etp(5) = 1"));
  EXPECT_THAT(refusal("[parallel]\nep = 2\ndata_parallel = \"parameter_server\"", 2), HasSubstr("no rank has all experts"));
}

TEST(ExpertLayout, MuonWantsExpertsWhole) {
  const std::string muon = "[optimizer]\nkind = \"muon\"\n[parallel]\n";
  for (const char* fits : {"ep = 4", "tp = 2\nep = 2", "zero = 1\nep = 4", "zero = 3\ndp_replicate = 2\nep = 2"})
    EXPECT_EQ(refusal(muon + fits, 4), "accepted") << fits;
  EXPECT_THAT(refusal(muon + "etp = 2", 4),
              HasSubstr("Muon updates whole matrices, but blocks.0.experts.0.gate.weight is cut over etp(2) x edp_shard(1) ranks"));
  const std::string sharded = refusal(muon + "zero = 1\nep = 2", 4);
  EXPECT_THAT(sharded, HasSubstr("etp(1) x edp_shard(2) ranks"));
  EXPECT_THAT(sharded, HasSubstr("give experts to AdamW"));
  const std::string rules = "[optimizer]\nkind = \"muon\"\nrules = \"match=blocks.*.experts.* optimizer=adamw\"\n[parallel]\n";
  EXPECT_EQ(refusal(rules + "zero = 1\netp = 2", 4), "accepted");
}

}  // namespace
}  // namespace lockstep::program
