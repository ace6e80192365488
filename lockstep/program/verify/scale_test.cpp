// Layouts of very many ranks cost what their different ranks cost: counted, not timed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "lockstep/base/text.h"
#include "lockstep/config/load.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/rank_map.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/rank_class.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

Layout layout_of(const std::string& text, const std::string& preset, int64_t layers, int ranks, int64_t microbatches, int64_t seq_len) {
  config::LoadedConfig loaded = config::load_config_text(cat("[parallel]\n", text), "run.toml");
  config::RunConfig& config = loaded.config;
  config.train.micro_batch = 1;
  config.train.seq_len = seq_len;
  config.train.global_batch = microbatches * (ranks / (config.parallel.pp * config.parallel.tp));
  config::ModelSection section{.preset = preset};
  if (layers > 0) section.layers = layers;
  return make_layout(loaded, arch::resolve_model(section, 0), ranks);
}

Layout cluster(int ranks) { return layout_of("pp = 8\ntp = 8\nzero = 1", "llama3-8b", 0, ranks, 8, 4096); }

std::vector<int> all_ranks(const Layout& layout) {
  std::vector<int> ranks(static_cast<size_t>(layout.mesh.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void expect_counts(int ranks) {
  const Layout layout = cluster(ranks);
  const Program program = build_program(layout);
  EXPECT_EQ(program.lists.size(), 8u);  // one for each stage
  size_t held = 0;
  for (const std::vector<Action>& list : program.lists) held += list.size();
  EXPECT_LT(held, 10'000u);
  const RankClasses classes(program, layout);
  EXPECT_EQ(classes.count(), 64u);
  EXPECT_EQ(classes.first_ranks().size(), 8u);
  int64_t counted = 0;
  const std::vector<RankClasses::Alike> among = classes.among(0, ranks);
  for (const RankClasses::Alike& alike : among) counted += alike.ranks;
  EXPECT_EQ(among.size(), 64u);
  EXPECT_EQ(counted, ranks);
  RankMemory memory(layout, program);
  std::set<const MemoryBytes*> predicted;
  for (int rank = 0; rank < ranks; ++rank) predicted.insert(&memory.of(rank));
  EXPECT_EQ(predicted.size(), 8u);  // parts over tp are equally large
  for (const int rank : {0, 13, ranks / 2 + 3, ranks - 1}) EXPECT_TRUE(memory.of(rank) == predict_memory(layout, program, rank)) << rank;
  size_t grouped = 0;
  const std::vector<std::vector<int>> groups = alike_ranks(program, layout, all_ranks(layout), true);
  for (const std::vector<int>& group : groups) grouped += group.size();
  EXPECT_EQ(groups.size(), 8u);
  EXPECT_EQ(grouped, static_cast<size_t>(ranks));
}

TEST(Scale, SixteenThousandRanks) { expect_counts(16'384); }

TEST(Scale, AMillionRanks) {
  expect_counts(1 << 20);
  const Layout layout = cluster(1 << 20);
  const RankMap map = placed_by_axis(layout, 8);
  EXPECT_EQ(map.nodes(), (1 << 20) / 8);
  EXPECT_EQ(nodes_of_copies(layout, map).size(), 16'384u);
  EXPECT_EQ(nodes_of_copies(layout, map).back().back(), map.nodes() - 1);
  EXPECT_EQ(map.ranks_on(map.nodes() - 1).back(), (1 << 20) - 1);
}

TEST(Scale, RanksBeyondAMillionAreRefused) {
  const config::RunConfig config = config::load_config_text("[parallel]\npp = 2\ntp = 2", "run.toml").config;
  const arch::ModelConfig model = arch::resolve_model({.preset = "llama-test"}, 0);
  EXPECT_FALSE(layout_problems(config, model, (1 << 20) + 4).empty());
}

struct Case {
  int ranks = 1;
  const char* text = "";
};

TEST(Scale, ClassesAreThoseOfEachRankByItself) {
  for (const Case& of : {Case{1, ""}, Case{6, "tp = 2\ndata_parallel = \"parameter_server\""}, Case{12, "tp = 2\npp = 2\ndata_parallel = \"parameter_server\""},
                         Case{16, "pp = 2\ntp = 2\nzero = 1"}, Case{8, "dp_shard = 2\ndp_replicate = 2\nzero = 3\ntp = 2"}}) {
    SCOPED_TRACE(cat(of.ranks, " ranks: ", of.text));
    const Layout layout = layout_of(of.text, "llama-test", 4, of.ranks, 4, 16);
    Program broken = build_program(layout);
    own_list(broken, of.ranks / 2).pop_back();
    for (const Program& program : {build_program(layout), broken}) {
      const RankClasses classes(program, layout);
      std::map<std::tuple<size_t, int, int, bool>, size_t> known;
      for (int rank = 0; rank < of.ranks; ++rank) {
        const std::tuple key(program.list_index(rank), layout.pipeline_rank(rank), layout.mesh.coordinates(rank)[mesh::Axis::kTp],
                             layout.owns_optimizer(rank));
        EXPECT_EQ(known.try_emplace(key, classes.of(rank)).first->second, classes.of(rank)) << rank;
      }
      std::set<size_t> different;
      for (const auto& [key, of_class] : known) different.insert(of_class);
      EXPECT_EQ(different.size(), known.size());
      for (int begin = 0; begin < of.ranks; ++begin) {
        std::map<size_t, int64_t> expected, found;
        for (int rank = begin; rank < of.ranks - begin / 2; ++rank) expected[classes.of(rank)] += 1;
        for (const auto& [first, ranks] : classes.among(begin, of.ranks - begin / 2)) found[classes.of(first)] += ranks;
        EXPECT_EQ(found, expected) << begin;
      }
    }
  }
}

void expect_exact(const Layout& layout, const JudgedSteps& steps) {
  const Program program = make_program(layout);
  RankMemory judged(layout, steps), whole(layout, program);
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) EXPECT_TRUE(judged.of(rank) == whole.of(rank)) << rank;
}

// Of a long step two shorter ones are made, and what follows from them is what it takes.
TEST(Scale, ALongStepIsReadOffShorterOnes) {
  for (const Case& of : {Case{2, ""}, Case{2, "zero = 2"}, Case{2, "zero = 3"}, Case{4, "pp = 2\nschedule = \"1f1b\""},
                         Case{8, "pp = 4\nzero = 1"}, Case{8, "pp = 4\nschedule = \"zb-h1\""}, Case{4, "pp = 2\nschedule = \"zb-h2\""},
                         Case{4, "pp = 2\nschedule = \"interleaved\""}, Case{4, "pp = 2\nschedule = \"zb-v\""}, Case{4, "pp = 2\nschedule = \"dualpipe-v\""},
                         Case{4, "pp = 2\n[memory]\nrecompute = \"full\""}, Case{2, "zero = 2\n[memory]\noffload = \"optimizer\""},
                         Case{8, "tp = 2\npp = 2\ndata_parallel = \"parameter_server\""}}) {
    SCOPED_TRACE(cat(of.ranks, " ranks: ", of.text));
    const Layout layout = layout_of(of.text, "llama-test", 6, of.ranks, 256, 16);
    const JudgedSteps steps = judged_steps(layout, 256);
    ASSERT_EQ(steps.made.size(), 2u);
    expect_exact(layout, steps);
    EXPECT_EQ(judged_steps(layout).made.size(), 1u);  // short enough
  }
  EXPECT_EQ(judged_steps(layout_of("pp = 2\nschedule = \"gpipe\"", "llama-test", 6, 4, 256, 16), 256).made.size(), 1u);
}

// To the byte for the shortest steps that are read off and the longest that are not, and where the losses of many microbatches
// outgrow what a pipeline holds while it fills.
TEST(Scale, ALongStepIsExactAtTheBorder) {
  constexpr int kMostStages = 6;
  for (const char* schedule : {"naive", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"}) {
    for (const int pp : {2, 3}) {
      for (const char* more : {"zero = 0", "zero = 2", "zero = 3\n[memory]\nrecompute = \"full\""}) {
        const std::string text = cat("pp = ", pp, "\nschedule = \"", schedule, "\"\n", more);
        const auto step = [&](int64_t microbatches) { return layout_of(text, "llama-test", 6, 2 * pp, microbatches, 1); };
        const int64_t border = 16 * step(kMostStages * 16).pipeline.stages();
        const int64_t apart = std::string_view(schedule) == "interleaved" ? pp : 1;
        for (const int64_t microbatches : {border - apart, border, border + apart, border + 2 * apart, int64_t{516}}) {
          SCOPED_TRACE(cat(text, ", ", microbatches, " microbatches"));
          const Layout layout = step(microbatches);
          const JudgedSteps steps = judged_steps(layout, 1);
          EXPECT_EQ(steps.made.size(), microbatches < border ? 1u : 2u);
          expect_exact(layout, steps);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::program
