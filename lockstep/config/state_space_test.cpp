// The keys of state spaces and of layers that differ: read, printed, read again, and what is refused of them with a layout.
#include "lockstep/config/fields.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/config/test_refusals.h"

namespace lockstep::config {
namespace {

using config::testing::expect_refused_alone;
using config::testing::layout_refusal;
using config::testing::read;
using config::testing::refusal;
using ::testing::HasSubstr;

constexpr const char* kEveryKey = R"(
[model]
mixers = "MWA-"
feed_forwards = "DE-"
window = 24
state_heads = 12
state_head_size = 8
state_size = 16
state_groups = 2
state_convolution = 3
state_chunk = 32
)";

TEST(StateSpaceConfig, ReadsTheKeys) {
  const ModelSection model = read(kEveryKey).model;
  EXPECT_EQ(model.mixers, "MWA-");
  EXPECT_EQ(model.feed_forwards, "DE-");
  EXPECT_EQ(model.window, 24);
  EXPECT_EQ(model.state_heads, 12);
  EXPECT_EQ(model.state_head_size, 8);
  EXPECT_EQ(model.state_size, 16);
  EXPECT_EQ(model.state_groups, 2);
  EXPECT_EQ(model.state_convolution, 3);
  EXPECT_EQ(model.state_chunk, 32);
  const RunConfig unset = read("[model]\nfamily = \"llama\"\n");
  EXPECT_FALSE(unset.model.mixers || unset.model.window || unset.model.state_heads);
}

TEST(StateSpaceConfig, ResolvedTextReadsBack) {
  const LoadedConfig loaded = load_config_text(kEveryKey, "run.toml");
  EXPECT_EQ(load_config_text(resolved_toml(loaded), "resolved").config, loaded.config);
  EXPECT_EQ(loaded.origin.at("model.mixers"), "run.toml:3");
  EXPECT_THAT(resolved_toml(load_config({}, {})), HasSubstr("# mixers is not set\n"));
  EXPECT_THAT(fields_help(), HasSubstr("--model.state_convolution=integer >= 2"));
  EXPECT_EQ(load_config({}, {{"model.feed_forwards", "-"}}).config.model.feed_forwards, "-");
}

TEST(StateSpaceConfig, RefusesValues) {
  EXPECT_THAT(refusal("[model]\nstate_heads = 0\n"), HasSubstr("LS1044"));
  EXPECT_THAT(refusal("[model]\nwindow = 0\n"), HasSubstr("LS1044"));
  EXPECT_THAT(refusal("[model]\nmixers = 3\n"), HasSubstr("LS1043"));
}

TEST(StateSpaceConfig, WhatFits) {
  for (const char* text : {"[model]\nstate_heads = 12\nstate_groups = 2\n[parallel]\ntp = 4", "[model]\nstate_heads = 12\nstate_groups = 4\n[parallel]\ntp = 2",
                           "[model]\nstate_heads = 12\n[parallel]\ntp = 4", "[model]\nstate_heads = 12\n[train]\nseq_len = 64\n[parallel]\ncp = 4"})
    EXPECT_EQ(layout_refusal(text, 4), "accepted") << text;
}

TEST(StateSpaceConfig, RefusesHeadsAndGroupsThatTpDoesNotCut) {
  expect_refused_alone({"[model]\nstate_heads = 6\n[parallel]\ntp = 4", 4, "run.toml:4", "model.state_heads(6) % tp(4) = 2", "tp 2 or 1"});
  expect_refused_alone({"[model]\nstate_heads = 12\nstate_groups = 2\n[parallel]\ntp = 3", 3, "run.toml:5",
                        "neither of model.state_groups(2) and tp(3) divides the other", "tp 1"});
}

TEST(StateSpaceConfig, RefusesPiecesThatAreNotOfOneLength) {
  expect_refused_alone({"[model]\nstate_heads = 12\n[train]\nseq_len = 100\n[parallel]\ncp = 4", 4, "run.toml:4",
                        "seq_len(100) % 2 cp(4) = 4: what fills sequences up to equal parts is no token, and would change the states behind it",
                        "seq_len 96 or 104"});
  expect_refused_alone({"[model]\nstate_heads = 12\n[train]\nseq_len = 6\n[parallel]\ncp = 4\ncontext_split = \"contiguous\"", 4, "run.toml:4",
                        "seq_len(6) % cp(4) = 2", "seq_len 4 or 8"});
}

// heads = 0: what program::layout_problems() says of a model without attention.
TEST(StateSpaceConfig, RefusesAModeOfAttentionThatIsNotThere) {
  LoadedConfig loaded = load_config_text("[parallel]\ncp = 2\ncontext = \"all_gather\"", "run.toml");
  loaded.config.model.heads = 0;
  const std::vector<LayoutProblem> problems = layout_problems(loaded.config, 2);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].key, "parallel.context");
  EXPECT_THAT(problems[0].what, HasSubstr("context = \"all_gather\" is of attention, which no layer of the model has"));
  loaded.config.parallel.context = ContextKind::kRing;
  EXPECT_TRUE(layout_problems(loaded.config, 2).empty());
}

}  // namespace
}  // namespace lockstep::config
