// Which ranks have the same traffic, and what is said of each stage, against the predicted ledgers and formulas.
#include "lockstep/program/predict/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "lockstep/base/text.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/render/render_text.h"
#include "lockstep/program/test_program.h"

namespace lockstep::program {
namespace {

using ::testing::HasSubstr;
using Groups = std::vector<std::vector<int>>;

constexpr int kBlocks = 8, kMicrobatches = 4, kSequences = 2, kTokens = 16;

struct Options {
  int pp = 1, dp = 1, tp = 1;
  int zero = 0;
  config::DataParallel data_parallel = config::DataParallel::kRing;
  ScheduleKind schedule = ScheduleKind::kOneFOneB;
};

Layout layout_for(const Options& options) {
  config::RunConfig config;
  config.model.preset = "gpt2-test";
  config.model.layers = kBlocks;
  config.parallel.pp = options.pp;
  config.parallel.tp = options.tp;
  config.parallel.zero = options.zero;
  config.parallel.data_parallel = options.data_parallel;
  config.parallel.schedule.kind = options.schedule;
  // The first and the last rank with as many blocks as the others.
  const int stages = config::pipeline_choice(config).virtual_stages * options.pp;
  if (options.pp > 1) config.parallel.layers_per_stage.list.assign(static_cast<size_t>(stages), kBlocks / stages);
  config.train.micro_batch = kSequences;
  config.train.global_batch = kSequences * kMicrobatches * options.dp;
  config.train.seq_len = kTokens;
  return make_layout(config, arch::resolve_model(config.model), options.pp * options.dp * options.tp);
}

std::vector<int> all_ranks(const Layout& layout) {
  std::vector<int> ranks(static_cast<size_t>(layout.mesh.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// What a rank does, by kind: calls, bytes, whether it sends any of them.
using Kinds = std::map<std::string, std::tuple<int64_t, int64_t, bool>>;
Kinds kinds_of(const Program& program, const Layout& layout, int rank) {
  Kinds kinds;
  const Ledger ledger = predict_ledger(layout, program, rank);
  for (const auto& [key, entry] : ledger.entries()) {
    if (key.id.purpose == Purpose::kReducePartial && layout.shards() > 1) continue;
    auto& [count, payload, sends] = kinds[cat(call_text(key.id.of_every_owner()), " ", collective_name(key.collective), " ", key.axis)];
    count += entry.count;
    payload += entry.payload;
    sends = sends || entry.sent_total() > 0;
  }
  return kinds;
}

TEST(AlikeRanks, MakeTheSameCallsAndOthersDoNot) {
  using config::DataParallel;
  const std::vector<Options> all = {{.pp = 2, .dp = 2},
                                    {.pp = 4, .dp = 2, .tp = 2},
                                    {.pp = 2, .dp = 2, .tp = 2, .zero = 1},
                                    {.pp = 2, .dp = 2, .tp = 3, .zero = 3},
                                    {.pp = 2, .dp = 3, .data_parallel = DataParallel::kParameterServer},
                                    {.pp = 2, .dp = 2, .schedule = ScheduleKind::kInterleaved},
                                    {.pp = 2, .tp = 2, .schedule = ScheduleKind::kZbV},
                                    {.dp = 3, .tp = 2},
                                    {.dp = 3, .data_parallel = DataParallel::kParameterServer},
                                    {.tp = 4}};
  for (const Options& options : all) {
    const Layout layout = layout_for(options);
    SCOPED_TRACE(describe(layout));
    const Program program = make_program(layout);
    std::vector<int> seen;
    std::vector<Kinds> first;
    for (const std::vector<int>& group : alike_ranks(program, layout, all_ranks(layout), false)) {
      first.push_back(kinds_of(program, layout, group.front()));
      for (const int rank : group) EXPECT_EQ(kinds_of(program, layout, rank), first.back()) << rank << " and " << group.front();
      seen.insert(seen.end(), group.begin(), group.end());
    }
    for (size_t i = 0; i < first.size(); ++i)
      for (size_t j = 0; j < i; ++j) EXPECT_NE(first[i], first[j]) << "groups " << i << " and " << j;
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, all_ranks(layout));
  }
}

TEST(AlikeRanks, StagesBetweenTheFirstAndTheLastAreAlikeButForTheirNumbers) {
  const Layout layout = layout_for({.pp = 4, .dp = 2});
  const Program program = make_program(layout);
  EXPECT_EQ(alike_ranks(program, layout, all_ranks(layout), false), (Groups{{0, 1}, {2, 3, 4, 5}, {6, 7}}));
  EXPECT_EQ(alike_ranks(program, layout, all_ranks(layout), true), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(alike_ranks(program, layout, {5}, false), (Groups{{5}}));
  const Layout server = layout_for({.pp = 2, .dp = 3, .data_parallel = config::DataParallel::kParameterServer});
  EXPECT_EQ(alike_ranks(make_program(server), server, all_ranks(server), false), (Groups{{0}, {1, 2}, {3}, {4, 5}}));
}

// Of a gpt2: hidden states of every microbatch to each neighbour, 2 (n - 1) / n of the gradients, and all of the unit of
// the tied embedding (with the positions) to the other end.
TEST(StagesTable, SaysWhatEachStageSends) {
  const Layout layout = layout_for({.pp = 4, .dp = 2});
  const Program program = make_program(layout);
  const int64_t h = layout.model.hidden, unit = (layout.model.vocab_size + layout.model.max_seq_len) * h;
  const int64_t block = 12 * h * h + 13 * h;  // qkv, out, two of the MLP; their biases and two norms
  const std::string states = decimal_bytes(int64_t{4} * kMicrobatches * kSequences * kTokens * h);
  const std::string tied = decimal_bytes(4 * unit);
  const int64_t middle = kBlocks / 4 * block, last = middle + unit + 2 * h;
  const std::string text = stages_table(program, layout, all_ranks(layout));
  const auto words = [&](int line) { return split(text, '\n')[static_cast<size_t>(line)]; };
  const auto row = [](const std::string& line) {  // its entries, two blanks or more apart
    std::vector<std::string> entries;
    for (size_t at = 0; at < line.size();) {
      const size_t end = std::min(line.find("  ", at), line.size());
      entries.push_back(line.substr(at, end - at));
      at = std::min(line.find_first_not_of(' ', end), line.size());
    }
    return entries;
  };
  using Row = std::vector<std::string>;
  EXPECT_EQ(row(words(1)), (Row{"ranks", "stages", "layers", "parameters", "send_f", "send_b", "reduce_grad", "reduce_tied", "in all"}));
  const auto all = [&](int rank) { return decimal_bytes(sent_total(predict_ledger(layout, program, rank))); };
  EXPECT_EQ(row(words(3)), (Row{"2..3", "1", "b2..b3", cat(middle), states, states, decimal_bytes(4 * middle), all(2)}));
  EXPECT_EQ(row(words(4)), (Row{"4..5", "2", "b4..b5", cat(middle), states, states, decimal_bytes(4 * middle), all(4)}));
  EXPECT_EQ(row(words(5)), (Row{"6..7", "3", "b6..head", cat(last), states, decimal_bytes(4 * last), tied, all(6)}));
  EXPECT_EQ(parameters_of(layout, 6), last);
}

TEST(LedgerTables, OneRankOfEachGroupAndWhoIsLikeIt) {
  const Layout layout = layout_for({.pp = 4, .dp = 2});
  const Program program = make_program(layout);
  const std::string text = ledger_tables(program, layout, all_ranks(layout), false);
  EXPECT_THAT(text, HasSubstr("rank 0, stage 0: embed..b1\n"));
  EXPECT_THAT(text, HasSubstr("rank 1: as on rank 0, each with its own peers\n\nrank 2, stage 1: b2..b3\n"));
  EXPECT_THAT(text, HasSubstr("ranks 3..5: as on rank 2, each with its own peers\n\nrank 6, stage 3: b6..head\n"));
  for (const int rank : all_ranks(layout))
    EXPECT_THAT(ledger_tables(program, layout, {rank}, false),
                HasSubstr(cat("rank ", rank, ", stage ", rank / 2, ": ", layers_text(layout, rank), "\n")));
}

// Formulas of the stage's own parameters, beside the predictions of every pp x dp x tp.
TEST(StageTraffic, FormulasMeetPredictionsOfEveryStage) {
  for (const int pp : {1, 2, 4})
    for (const int dp : {2, 4})
      for (const int tp : {1, 2}) {
        const Layout layout = layout_for({.pp = pp, .dp = dp, .tp = tp});
        SCOPED_TRACE(describe(layout));
        const std::vector<int> ranks = stage_ranks(layout);
        const std::vector<ReductionTraffic> reductions = reduction_traffic(layout, ranks);
        Layout sharded = layout_for({.pp = pp, .dp = dp, .tp = tp, .zero = 2});
        const std::vector<std::vector<StageTraffic>> zero = sharding_traffic(sharded, ranks);
        for (size_t i = 0; i < ranks.size(); ++i) {
          EXPECT_EQ(layout.pipeline_rank(ranks[i]), static_cast<int>(i));
          const double bytes = 4 * static_cast<double>(parameters_of(layout, ranks[i]));
          const auto near = [](int64_t predicted, double formula) { EXPECT_NEAR(static_cast<double>(predicted) / formula, 1, 0.01); };
          near(reductions[i].ring_link, ring_link_bytes(bytes, dp));
          near(reductions[i].server_link, server_link_bytes(bytes, dp));
          EXPECT_EQ(zero[i][1].reduces, pp == 1 ? kMicrobatches : 1);
          near(zero[i][0].predicted_bytes, zero[i][0].formula_bytes);
          near(zero[i][1].predicted_bytes, zero[i][1].formula_bytes);
          EXPECT_LT(static_cast<double>(zero[i][2].predicted_bytes), 1.01 * zero[i][2].formula_bytes);  // padded
        }
      }
}

}  // namespace
}  // namespace lockstep::program
