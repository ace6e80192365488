// Layouts of models with state spaces: what is refused by the sizes of the model, which tokens a rank has, and which gradients tp sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lockstep/arch/layer_description.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/load.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

config::LoadedConfig loaded(const std::string& preset, const std::string& text) {
  return config::load_config_text("[model]\npreset = \"" + preset + "\"\n[train]\nseq_len = 48\nmicro_batch = 1\nglobal_batch = 120\n" + text, "run.toml");
}

Layout layout_of(const std::string& preset, const std::string& text, int ranks) {
  const config::LoadedConfig config = loaded(preset, text);
  return make_layout(config, arch::resolve_model(config.config.model, 0, config.config.moe), ranks);
}

std::string refusal(const std::string& preset, const std::string& text, int ranks) {
  try {
    layout_of(preset, text, ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(StateSpaceLayout, IsJudgedWithTheSizesOfTheModel) {
  for (const char* text : {"tp = 2", "tp = 3", "tp = 4", "cp = 2", "cp = 4", "pp = 2", "tp = 2\nrow_groups = true", "cp = 2\nzero = 3", "tp = 2\ncp = 2"})
    EXPECT_EQ(refusal("mamba2-test", cat("[parallel]\n", text), 12), "accepted") << text;
  EXPECT_THAT(refusal("mamba2-test", "[parallel]\ntp = 5", 5), HasSubstr("model.state_heads(12) % tp(5) = 2"));
  EXPECT_THAT(refusal("hybrid-test", "[parallel]\ntp = 3", 3), HasSubstr("neither of model.state_groups(2) and tp(3) divides the other"));
  EXPECT_THAT(refusal("mamba2-test", "[parallel]\ncp = 5", 5), HasSubstr("seq_len(48) % 2 cp(5) = 8: what fills sequences up"));
  EXPECT_EQ(refusal("llama-test", "[parallel]\ncp = 5", 5), "accepted") << "attention sees nothing of what is behind the end";
  EXPECT_THAT(refusal("mamba2-test", "[parallel]\ncp = 2\ncontext = \"all_to_all\"", 2), HasSubstr("is of attention, which no layer of the model has"));
  EXPECT_EQ(refusal("hybrid-test", "[parallel]\ncp = 2\ncontext = \"all_to_all\"", 2), "accepted");
  config::LoadedConfig half = loaded("mamba2-test", "");
  half.config.train.precision = config::Precision::kBf16;
  half.config.train.device = config::Device::kCuda;
  EXPECT_TRUE(layout_problems(half.config, arch::resolve_model(half.config.model), 1).empty()) << "no heads of attention";
  EXPECT_EQ(refusal("hybrid-experts-test", "[optimizer]\nkind = \"muon\"\n[parallel]\ntp = 4\nep = 2\nzero = 1", 8), "accepted");
}

TEST(StateSpaceLayout, NormsOverGroupsFitTheRanks) {
  const config::LoadedConfig config = loaded("mamba2-test", "[parallel]\ntp = 4");
  arch::ModelConfig model = arch::resolve_model(config.config.model);
  for (const int64_t groups : {0, 1, 4, 8}) {
    model.state_space.norm_groups = groups;
    EXPECT_TRUE(layout_problems(config.config, model, 4).empty()) << groups;
  }
  model.state_space.norm_groups = 6;
  const std::vector<config::LayoutProblem> problems = layout_problems(config.config, model, 4);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_THAT(problems[0].what, HasSubstr("norm_groups(6) of the model's state spaces % tp(4) = 2"));
}

TEST(StateSpaceLayout, RanksHoldWholePieces) {
  EXPECT_TRUE(layout_of("hybrid-test", "[parallel]\ncp = 2", 2).whole_pieces());
  EXPECT_FALSE(layout_of("llama-test", "[parallel]\ncp = 2", 2).whole_pieces());
}

// Of 3 layers with one group on 2 ranks: b and c and their convolutions whole on both, and the numbers of the heads.
TEST(StateSpaceLayout, WholeRowsAreSummedOverTp) {
  const int64_t of_groups = 2 * 16 * 48 + 2 * 16 * 4 + 2 * 16, of_heads = 3 * 12, norms = 48;
  const auto partial = [](const std::string& text) { return partial_gradients(layout_of("mamba2-test", "[parallel]\ntp = 2\n" + text, 2).param_table(0)); };
  EXPECT_EQ(partial("sequence_parallel = false").of_axis, 3 * (of_groups + of_heads));
  EXPECT_EQ(partial("").of_axis, 3 * (of_groups + of_heads + norms) + norms) << "norms of rows too, and that of the head";
  EXPECT_EQ(partial("row_groups = true").of_axis, 3 * of_groups) << "but for what is fused, a group of their own";
  EXPECT_EQ(partial("").of_copies, 0) << "none goes by heads that ranks share";
  EXPECT_EQ(partial_gradients(layout_of("hybrid-test", "[parallel]\ntp = 2\nsequence_parallel = false", 2).param_table(0)).of_axis, 2 * of_heads)
      << "two groups are cut";
}

TEST(StateSpaceLayout, FindsTheBlocksWithExperts) {
  const Layout layout = layout_of("hybrid-experts-test", "[parallel]\nep = 2", 2);
  std::vector<int> with_experts;
  for (int layer = 0; layer < layout.num_layers(); ++layer)
    if (layout.is_expert_block(layer)) with_experts.push_back(layer);
  EXPECT_THAT(with_experts, ElementsAre(2, 4));
  EXPECT_EQ(layout.load_numbers(), 2 * (8 + arch::load_extras(layout.moe)));
}

}  // namespace
}  // namespace lockstep::program
