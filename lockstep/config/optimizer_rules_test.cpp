// [[optimizer.rules]]: read, printed, read again, refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/config/check.h"
#include "lockstep/config/load.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::config {
namespace {

using ::testing::HasSubstr;

OptimizerRules rules_of(const std::string& text) { return load_config_text(text, "run.toml").config.optimizer.rules; }

std::string refusal(const std::string& text) {
  try {
    rules_of(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

const OptimizerRules kTwo{{{.match = "blocks.*.mlp.*", .optimizer = OptimizerKind::kAdamW, .lr = 0.5},
                           {.of = ParameterClass::kNorm, .decay = 0.25}}};

TEST(OptimizerRules, AreTablesOrTexts) {
  EXPECT_EQ(rules_of("[optimizer]\nkind = \"muon\"\n"
                     "[[optimizer.rules]]\nmatch = \"blocks.*.mlp.*\"\noptimizer = \"adamw\"\nlr = 0.5\n"
                     "[[optimizer.rules]]\nclass = \"norm\"\ndecay = 0.25\n"),
            kTwo);
  EXPECT_EQ(rules_of("[optimizer]\nrules = [\"match=blocks.*.mlp.* optimizer=adamw lr=0.5\", \"class=norm decay=0.25\"]\n"), kTwo);
  EXPECT_EQ(rules_of("[optimizer]\nrules = \"match=blocks.*.mlp.* optimizer=adamw lr=0.5; class=norm decay=0.25\"\n"), kTwo);
  EXPECT_EQ(rules_of(""), OptimizerRules{});
}

TEST(OptimizerRules, ResolvedTextReadsBack) {
  LoadedConfig loaded;
  loaded.config.optimizer.kind = OptimizerKind::kMuon;
  loaded.config.optimizer.muon_lr = 0.02;
  loaded.config.optimizer.rules = kTwo;
  EXPECT_EQ(load_config_text(resolved_toml(loaded), "resolved").config.optimizer, loaded.config.optimizer);
}

TEST(OptimizerRules, AreRefusedByName) {
  const auto rule = [](const std::string& lines) { return refusal("[[optimizer.rules]]\n" + lines); };
  EXPECT_THAT(rule("clas = \"norm\"\nlr = 1\n"), HasSubstr("did you mean 'class'?"));
  EXPECT_THAT(rule("class = \"vector\"\nlr = 1\n"), HasSubstr("optimizer.rules.class = \"vector\" is none of matrix"));
  EXPECT_THAT(rule("class = \"norm\"\noptimizer = \"sgd\"\n"), HasSubstr("optimizer.rules.optimizer = \"sgd\" is none of adamw, muon"));
  EXPECT_THAT(rule("class = \"norm\"\nlr = -1\n"), HasSubstr("out of range"));
  EXPECT_THAT(rule("class = \"norm\"\n"), HasSubstr("says nothing of them"));
  EXPECT_THAT(rule("lr = 2\n"), HasSubstr("names no parameters"));
  EXPECT_THAT(refusal("[optimizer]\nrules = 3\n"), HasSubstr("is no list of rules"));
  EXPECT_THAT(refusal("[optimizer]\nrules = \"norm\"\n"), HasSubstr("which is no key=value"));
}

// Where matrices lie scattered an update cannot be taken back; by itself a schedule then does without.
TEST(OptimizerRules, MuonOverSeveralRanksIsValidatedBeforehand) {
  RunConfig config;
  config.parallel.pp = 2;
  config.parallel.tp = 2;
  config.parallel.schedule = {.kind = ScheduleKind::kZbH2};
  EXPECT_TRUE(pipeline_choice(config).post_validation);
  config.optimizer.kind = OptimizerKind::kMuon;
  EXPECT_FALSE(pipeline_choice(config).post_validation);
  config.parallel.post_validation = PostValidation::kOn;
  const auto about_muon = [](const LayoutProblem& problem) { return problem.what.find("beside optimizer.kind") != std::string::npos; };
  EXPECT_TRUE(std::ranges::any_of(layout_problems(config, 4), about_muon));
  config.parallel.tp = 1;
  EXPECT_FALSE(std::ranges::any_of(layout_problems(config, 2), about_muon));
}

}  // namespace
}  // namespace lockstep::config
