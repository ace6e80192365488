// What is made once for many ranks is what each rank by itself would have: lists, ledgers, memory, groups of alike ranks.
#include "lockstep/program/rank_class.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "lockstep/base/text.h"
#include "lockstep/config/load.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/rank_map.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using testing::IsEmpty;
using testing::Not;

struct Case {
  int ranks = 1;
  const char* text = "";  // of the run file, from [parallel] on
  const char* preset = "llama-test";
  int64_t seq_len = 16;
};

const Case kCases[] = {
    {1, ""},
    {4, ""},
    {4, "bucket_mib = 0.02\noverlap = false"},
    {3, "data_parallel = \"parameter_server\""},
    {6, "tp = 2\ndata_parallel = \"parameter_server\""},
    {4, "pp = 2\ndata_parallel = \"parameter_server\""},
    {2, "tp = 2"},
    {6, "tp = 3", "gpt2-test"},
    {8, "tp = 4\nsequence_parallel = false"},
    {4, "tp = 4", "llama-test", 15},
    {4, "zero = 1"},
    {4, "zero = 2"},
    {4, "zero = 3"},
    {4, "zero = 1\ndp_shard = 2\ndp_replicate = 2"},
    {8, "zero = 3\ndp_shard = 2\ndp_replicate = 2\ntp = 2"},
    {8, "zero = 1\ntp = 2"},
    {12, "zero = 1\ntp = 3", "gpt2-test"},
    {4, "zero = 2\nreduce_precision = \"bf16\"\n[train]\nprecision = \"bf16\""},
    {2, "pp = 2"},
    {4, "pp = 2", "gpt2-test"},
    {8, "pp = 4"},
    {8, "pp = 2\ntp = 4", "llama-test", 15},
    {4, "pp = 2\nschedule = \"interleaved\""},
    {4, "pp = 2\nschedule = \"zb-h1\""},
    {8, "pp = 4\nschedule = \"zb-h2\""},
    {16, "pp = 2\ntp = 2\nzero = 1\nschedule = \"zb-h2\"", "gpt2-test"},
    {4, "pp = 2\nschedule = \"zb-v\""},
    {4, "pp = 2\nschedule = \"dualpipe-v\""},
    {16, "pp = 2\ntp = 2\nzero = 1\nschedule = \"gpipe\""},
    {16, "pp = 2\ntp = 2\nzero = 2"},
    {16, "pp = 2\ntp = 2\nzero = 3\ndp_shard = 2\ndp_replicate = 2"},
    {64, "pp = 4\ntp = 2\nzero = 1"},
    {8, "pp = 2\ntp = 2\nzero = 1\n[memory]\nrecompute = [\"none\", \"full\", \"selective\", \"full\"]"},
    {4, "zero = 2\n[memory]\noffload = \"optimizer\""},
    {4, "zero = 3\n[memory]\noffload = [\"optimizer\", \"parameters\"]"},
    {4, "tp = 2\n[memory]\nrecompute = \"full\"\noffload = [\"optimizer\", \"activations\"]"},
};

Layout layout_of(const Case& of) {
  config::LoadedConfig loaded = config::load_config_text(cat("[parallel]\n", of.text), "run.toml");
  config::RunConfig& config = loaded.config;
  config.train.micro_batch = 1;
  config.train.seq_len = of.seq_len;
  config.train.global_batch = 4 * (of.ranks / (config.parallel.pp * config.parallel.tp));
  config::ModelSection section{.preset = of.preset};
  section.layers = 4;
  return make_layout(loaded, arch::resolve_model(section, 0), of.ranks);
}

// The program whose every rank is planned by itself.
Program planned_alone(const Layout& layout) {
  const Program shared = schedule(layout);
  Program program;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) program.lists.push_back(shared.list(rank));
  program.list_of.resize(program.lists.size());
  std::iota(program.list_of.begin(), program.list_of.end(), 0);
  for (const PassStep& step : pass_steps()) program = step.make(std::move(program), layout);
  return program;
}

// Every call of the list, one after the other.
Ledger ledger_alone(const Layout& layout, const Program& program, int rank) {
  Ledger ledger;
  for (const Action& action : program.list(rank))
    for (const CallOfRank& of : calls_of_rank(layout, program, rank, action))
      ledger.add(of.key, payload(of.call), predicted_sends(of.call, of.group_rank));
  return ledger;
}

TEST(RankClasses, ARankHasWhatItWouldHaveAlone) {
  for (const Case& of : kCases) {
    SCOPED_TRACE(cat(of.ranks, " ranks: ", of.text));
    const Layout layout = layout_of(of);
    const Program shared = build_program(layout), alone = planned_alone(layout);
    EXPECT_TRUE(shared == alone);
    RankMemory memory(layout, shared);
    for (int rank = 0; rank < of.ranks; ++rank) {
      EXPECT_EQ(shared.list(rank), alone.list(rank)) << rank;
      EXPECT_TRUE(memory.of(rank) == predict_memory(layout, alone, rank)) << rank;
      EXPECT_THAT(Ledger::difference(ledger_alone(layout, alone, rank), predict_ledger(layout, shared, rank)), IsEmpty()) << rank;
    }
  }
}

// By site, collective, axis and algorithm, size of the group and whether the rank is its root: calls and bytes. What differs by
// shard is left out.
using Kinds = std::map<std::tuple<LedgerKey, size_t, bool>, std::pair<int64_t, int64_t>>;
Kinds kinds_alone(const Layout& layout, const Program& program, int rank) {
  Kinds kinds;
  const std::vector<Action>& actions = program.list(rank);
  CallTable table(layout, program, rank);
  for (const Action& action : actions)
    for (const PlannedCall& call : table.of(action)) {
      if (layout.shards() > 1 && action.kind == ActionKind::kReducePartial) continue;
      const CallOfRank planned = call_of_rank(layout, rank, call);
      const bool rooted = planned.call.collective == Collective::kBroadcast || planned.call.collective == Collective::kReduce;
      auto& [count, bytes] =
          kinds[{planned.key, planned.call.group.size(), rooted && planned.call.root == planned.group_rank}];
      count += 1;
      bytes += payload(planned.call);
    }
  return kinds;
}

TEST(RankClasses, AlikeAreRanksThatMakeTheSameCalls) {
  for (const Case& of : kCases) {
    SCOPED_TRACE(cat(of.ranks, " ranks: ", of.text));
    const Layout layout = layout_of(of);
    const Program program = build_program(layout);
    std::vector<int> ranks(static_cast<size_t>(of.ranks));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::map<Kinds, size_t> known;
    std::vector<std::vector<int>> expected;
    for (const int rank : ranks) {
      const auto [entry, fresh] = known.try_emplace(kinds_alone(layout, program, rank), expected.size());
      if (fresh) expected.emplace_back();
      expected[entry->second].push_back(rank);
    }
    EXPECT_EQ(alike_ranks(program, layout, ranks, true), expected);
  }
}

TEST(RankClasses, TheTrafficOfAllRanksIsThatOfEach) {
  for (const Case& of : kCases) {
    SCOPED_TRACE(cat(of.ranks, " ranks: ", of.text));
    const Layout layout = layout_of(of);
    const Program program = build_program(layout);
    const RankMap map = placed_in_order(layout, 2);
    std::map<std::string, std::pair<int64_t, int64_t>> expected;  // by axis: sent, and sent to another server
    for (int rank = 0; rank < of.ranks; ++rank) {
      const Ledger ledger = ledger_alone(layout, program, rank);
      for (const auto& [key, entry] : ledger.entries()) {
        const char* data = layout.mesh.degree(mesh::Axis::kDpShard) > 1 ? "dp_shard" : "dp_replicate";
        auto& [sent, between] = expected[key.axis == "dp" ? data : key.axis];
        for (const auto& [peer, bytes] : entry.sent) {
          sent += bytes;
          between += rank / 2 != peer / 2 ? bytes : 0;
        }
      }
    }
    std::map<std::string, std::pair<int64_t, int64_t>> found;
    for (const AxisTraffic& axis : axis_traffic(layout, program, {map})) found[axis.axis] = {axis.sent, axis.between_nodes[0]};
    EXPECT_EQ(found, expected);
  }
}

TEST(RankClasses, OfManyGroupsTheFirstAreMade) {
  for (const Case& of : kCases) {
    const Layout layout = layout_of(of);
    const std::vector<AxisGroups> all = axis_groups(layout), some = axis_groups(layout, 3);
    ASSERT_EQ(all.size(), some.size());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].count, std::ssize(all[i].groups));
      EXPECT_EQ(some[i].count, all[i].count);
      ASSERT_LE(some[i].groups.size(), 3u);
      for (size_t group = 0; group < some[i].groups.size(); ++group) EXPECT_EQ(some[i].groups[group], all[i].groups[group]);
    }
  }
}

TEST(RankClasses, EqualListsAreOneUntilARankGetsItsOwn) {
  const std::vector<Action> loss = {{.kind = ActionKind::kLoss}}, norm = {{.kind = ActionKind::kNorm}};
  Program program = Program::of_ranks({loss, norm, loss, loss});
  EXPECT_EQ(program.lists.size(), 2u);
  EXPECT_EQ(program.first_ranks(), (std::vector<int>{0, 1}));
  EXPECT_TRUE(program.same_list(0, 3));
  own_list(program, 2) = norm;
  own_list(program, 1).clear();  // nobody else runs it
  EXPECT_EQ(program.lists.size(), 3u);
  EXPECT_EQ(program.list(3), loss);
  EXPECT_TRUE(program == Program::of_ranks({loss, {}, norm, loss}));
  EXPECT_FALSE(program == Program::of_ranks({loss, {}, norm, norm}));
}

// Whichever rank it is, and although the others of its class run a sound list.
TEST(RankClasses, TheBrokenListOfOneRankIsFound) {
  const Layout layout = layout_of({64, "pp = 4\ntp = 2\nzero = 1"});
  const Program sound = build_program(layout);
  ASSERT_THAT(verify(sound, layout), IsEmpty());
  for (const int rank : {0, 1, 2, 15, 16, 40, 63}) {
    Program broken = sound;
    own_list(broken, rank).pop_back();
    EXPECT_EQ(broken.lists.size(), sound.lists.size() + 1);
    EXPECT_FALSE(broken == sound);
    EXPECT_THAT(verify(broken, layout), Not(IsEmpty())) << rank;
    own_list(broken, rank).push_back(sound.list(rank).back());
    EXPECT_TRUE(broken == sound);
    EXPECT_THAT(verify(broken, layout), IsEmpty()) << rank;
  }
}

TEST(RankClasses, SixteenThousandRanksRunAListForEveryStage) {
  config::LoadedConfig loaded = config::load_config_text("[parallel]\npp = 8\ntp = 8\nzero = 1", "run.toml");
  loaded.config.train.micro_batch = 1;
  loaded.config.train.seq_len = 4096;
  loaded.config.train.global_batch = 256 * 8;
  config::ModelSection section{.preset = "llama3-8b"};
  const Layout layout = make_layout(loaded, arch::resolve_model(section, 0), 16384);
  const Program program = build_program(layout);
  EXPECT_EQ(program.world_size(), 16384);
  EXPECT_EQ(program.lists.size(), 8u);
  size_t held = 0, longest = 0;
  for (const std::vector<Action>& list : program.lists) {
    held += list.size();
    longest = std::max(longest, list.size());
  }
  EXPECT_LE(held, 8 * longest);
  EXPECT_LT(held, 10000u);
  EXPECT_EQ(distinct_pipelines(program, layout).size(), 1u);
}

}  // namespace
}  // namespace lockstep::program
