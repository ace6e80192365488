// Experts of a configuration as a layout, and what they refuse of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
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

// Whole on a rank, cut over etp, shared out among the ranks that hold them, and both; a router beside them.
TEST(ExpertLayout, MuonTakesExpertsHoweverTheyLie) {
  const std::string muon = "[optimizer]\nkind = \"muon\"\n[parallel]\n";
  for (const char* fits : {"ep = 4", "tp = 2\nep = 2", "zero = 1\nep = 4", "zero = 3\ndp_replicate = 2\nep = 2", "etp = 2", "zero = 1\nep = 2",
                           "zero = 2\netp = 2", "tp = 2\netp = 2\nzero = 3"})
    EXPECT_EQ(refusal(muon + fits, 4), "accepted") << fits;
  const std::string router = "[optimizer]\nkind = \"muon\"\nrules = \"class=router optimizer=muon\"\n[parallel]\n";
  EXPECT_EQ(refusal(router + "tp = 2\nzero = 1\nrow_groups = true", 4), "accepted");
}

// Ranks of ep have other experts of a block, and one list of actions.
TEST(ExpertLayout, RulesOfOneExpertAreRefusedWithEp) {
  const std::string rules = "[optimizer]\nkind = \"muon\"\nrules = \"match=blocks.0.experts.1.* optimizer=adamw\"\n[parallel]\n";
  EXPECT_THAT(refusal(rules + "ep = 2", 2),
              HasSubstr("gives blocks.0.experts.0.gate.weight to muon and blocks.0.experts.1.gate.weight to adamw, but with ep(2)"));
  EXPECT_EQ(refusal(rules + "zero = 1", 2), "accepted");
  for (const char* part : {"down", "gate"}) {
    const std::string alike = cat("[optimizer]\nkind = \"muon\"\nrules = \"match=blocks.*.", part, ".weight optimizer=adamw\"\n");
    EXPECT_EQ(refusal(alike + "[parallel]\nep = 2", 2), "accepted");
  }
}

// What has gone to the owners of matrices cannot be taken back.
TEST(ExpertLayout, MuonThatTravelsIsNotTakenBack) {
  const std::string taken_back = "[optimizer]\nkind = \"muon\"\n[parallel]\npp = 2\nschedule = \"zb-h2\"\npost_validation = \"on\"\n";
  EXPECT_EQ(refusal(taken_back + "ep = 2", 4), "accepted");
  EXPECT_THAT(refusal(taken_back + "etp = 2", 4), HasSubstr("post_validation = \"on\" beside optimizer.kind"));
}

}  // namespace
}  // namespace lockstep::program
