// Ranks that share out experts for generation: which may, and that every way out that is offered holds.
#include "apps/lockstep/generate_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::apps {
namespace {

using ::testing::HasSubstr;
using Problems = std::vector<config::LayoutProblem>;

arch::ModelConfig model(int64_t heads, int64_t experts, int64_t ffn = 12) {
  arch::ModelConfig model = arch::resolve_model({.preset = "llama-test"});
  model.heads = model.kv_heads = heads;
  if (experts > 0) model.experts = {.count = experts, .per_token = 2, .ffn = ffn};
  return model;
}

// What is refused; nothing where the ranks hold the model.
Problems refused(const arch::ModelConfig& model, int ranks, int ep, int etp = 1, const std::string& key = config::kRanks) {
  try {
    check_ranks(model, {.ep = ep, .etp = etp}, ranks, key);
  } catch (const config::RefusedConfig& refused) {
    EXPECT_EQ(refused.message().code, "LS1007");
    return refused.problems();
  }
  return {};
}

bool suits(const arch::ModelConfig& model, int ranks, int ep, int etp) {
  return model.heads % ranks == 0 && model.experts.count % ep == 0 && model.experts.ffn % etp == 0 && ranks % (ep * etp) == 0;
}

TEST(GenerateRanks, EveryWayOutHolds) {
  int taken = 0;
  for (const arch::ModelConfig& one : {model(8, 8), model(12, 6)})
    for (const int ranks : {1, 2, 3, 4, 6, 8, 9})
      for (const int ep : {2, 3, 4, 5, 8})
        for (const int etp : {1, 2, 5}) {
          SCOPED_TRACE(cat(one.heads, " heads, ranks ", ranks, ", ep ", ep, ", etp ", etp));
          const Problems problems = refused(one, ranks, ep, etp);
          EXPECT_EQ(problems.empty(), suits(one, ranks, ep, etp));
          if (problems.size() != 1) continue;  // else a way mends one of several
          EXPECT_FALSE(problems[0].ways.empty());
          for (const config::Suggestion& way : problems[0].ways) {
            std::map<std::string, int> now = {{config::kRanks, ranks}, {"parallel.ep", ep}, {"parallel.etp", etp}};
            for (const config::Change& change : way.changes) {
              if (change.key != "parallel.tp") now.at(change.key) = change.value ? std::stoi(*change.value) : 1;
            }
            EXPECT_TRUE(suits(one, now[config::kRanks], now["parallel.ep"], now["parallel.etp"])) << config::text_of(way);
            ++taken;
          }
        }
  EXPECT_GT(taken, 50);
}

TEST(GenerateRanks, EveryWayOutHoldsWithTextsInParts) {
  const auto holds = [](const arch::ModelConfig& model, int ranks, int cp, int ep) {
    return ranks % cp == 0 && model.heads % (ranks / cp) == 0 && (ep == 1 || (model.experts.count % ep == 0 && ranks % ep == 0));
  };
  int taken = 0;
  for (const arch::ModelConfig& one : {model(8, 0), model(12, 6)})
    for (const int ranks : {1, 2, 3, 4, 6, 8, 10, 12})
      for (const int cp : {2, 3, 4})
        for (const int ep : {1, 2, 3}) {
          if (ep > 1 && !one.has_experts()) continue;
          SCOPED_TRACE(cat(one.heads, " heads, ranks ", ranks, ", cp ", cp, ", ep ", ep));
          Problems problems;
          try {
            check_ranks(one, {.cp = cp, .ep = ep}, ranks);
          } catch (const config::RefusedConfig& refused) {
            problems = refused.problems();
          }
          EXPECT_EQ(problems.empty(), holds(one, ranks, cp, ep));
          if (problems.size() != 1) continue;
          for (const config::Suggestion& way : problems[0].ways) {
            std::map<std::string, int> now = {{config::kRanks, ranks}, {"parallel.cp", cp}, {"parallel.ep", ep}};
            for (const config::Change& change : way.changes) {
              if (now.contains(change.key)) now[change.key] = change.value ? std::stoi(*change.value) : 1;
            }
            const bool further = ranks % cp != 0;  // what comes behind is judged then
            EXPECT_TRUE(further ? now[config::kRanks] % now["parallel.cp"] == 0
                                : holds(one, now[config::kRanks], now["parallel.cp"], now["parallel.ep"])) << config::text_of(way);
            ++taken;
          }
        }
  EXPECT_GT(taken, 20);
}

TEST(GenerateRanks, TheEquationIsSaid) {
  const auto only = [](const Problems& problems) {
    EXPECT_EQ(problems.size(), 1u);
    return problems.at(0);
  };
  const config::LayoutProblem experts = only(refused(model(8, 6), 4, 4));
  EXPECT_EQ(experts.what, "model.experts(6) % ep(4) = 2");
  EXPECT_EQ(config::text_of(experts.ways), "use ep 2 or 1");
  const config::LayoutProblem ranks = only(refused(model(8, 8), 2, 4));
  EXPECT_THAT(ranks.what, HasSubstr("tp(2) = 2 ranks of a stage % ep(4) = 2"));
  EXPECT_THAT(config::text_of(ranks.ways), HasSubstr("-n 4"));
  EXPECT_THAT(config::text_of(only(refused(model(8, 8), 2, 4, 1, "parallel.tp")).ways), HasSubstr("tp 4"));
  EXPECT_EQ(only(refused(model(8, 8), 8, 1, 8)).what, "model.expert_ffn(12) % etp(8) = 4");
  EXPECT_THAT(only(refused(model(8, 0), 2, 2)).what, HasSubstr("the model has none"));
  EXPECT_EQ(only(refused(model(8, 6), 3, 3)).what, "heads(8) % tp(3) = 2: ranks hold whole heads");
}

TEST(GenerateRanks, WhatTheCommandLineSays) {
  CommandLine line;
  line.overrides = {{"parallel.ep", "2"}, {"run.name", "other"}, {"parallel.etp", "2"}};
  const GenerateDegrees folded = generate_degrees(line);
  EXPECT_EQ(folded.ranks(), 4);  // as many as ep x etp lies over
  EXPECT_NO_THROW(check_degree(folded, 8));
  line.overrides.push_back({"parallel.tp", "8"});
  const GenerateDegrees all = generate_degrees(line);
  EXPECT_EQ(all.ranks(), 8);
  EXPECT_EQ((GenerateDegrees{.cp = 2}).ranks(), 2);
  EXPECT_EQ((GenerateDegrees{.tp = 3, .cp = 2}).ranks(), 6);
  EXPECT_EQ((GenerateDegrees{.cp = 6, .ep = 4}).ranks(), 12);
  EXPECT_EQ((GenerateDegrees{.cp = 2}).tensor(6), 3);
  EXPECT_THROW(check_degree({.tp = 3, .cp = 2}, 3), config::RefusedConfig);
  EXPECT_NO_THROW(check_degree({.tp = 3, .cp = 2}, 6));
  EXPECT_THROW(check_degree(all, 4), config::RefusedConfig);
  for (const char* value : {"0", "-1", "1025", "x"}) {
    line.overrides = {{"parallel.ep", value}};
    EXPECT_THROW(generate_degrees(line), ConfigError) << value;
  }
  EXPECT_FALSE(generate_reads("parallel.pp"));
}

}  // namespace
}  // namespace lockstep::apps
