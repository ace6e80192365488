// Domains, the names of groups, and the order in which ranks make them.
#include "lockstep/program/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/program/layout.h"

namespace lockstep::program {
namespace {

using mesh::Axis;
using testing::ElementsAre;

struct Degrees {
  int pp = 1, replicate = 1, shard = 1, cp = 1, tp = 1, zero = 0;
  bool server = false;
};

// "llama-test" has 12 heads, 4 of keys and values; "gpt2-test" is tied.
Layout layout_of(const Degrees& of, const char* preset = "llama-test") {
  config::ModelSection section;
  section.preset = preset;
  section.layers = of.pp;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[Axis::kPp] = of.pp;
  degrees[Axis::kDpReplicate] = of.replicate;
  degrees[Axis::kDpShard] = of.shard;
  degrees[Axis::kCp] = of.cp;
  degrees[Axis::kTp] = of.tp;
  Layout layout;
  layout.model = arch::resolve_model(section);
  layout.mesh = mesh::Mesh(degrees);
  layout.pipeline.ranks = of.pp;
  layout.pipeline.first_layer = stages_of_blocks(std::vector<int>(static_cast<size_t>(of.pp), 1));
  layout.zero = of.zero;
  layout.data_parallel = of.server ? config::DataParallel::kParameterServer : config::DataParallel::kRing;
  return layout;
}

std::string name_of(const Layout& layout, const mesh::View& view) { return group_name(layout, group_over(layout, view)); }

TEST(Domain, OfDenseParametersIsSummedOverTokensAndSharedOutWithZero) {
  const Domain plain = layout_of({.replicate = 4}).dense_domain();
  EXPECT_EQ(plain.sum, mesh::View(Axis::kDpReplicate | Axis::kDpShard | Axis::kCp));
  EXPECT_EQ(plain.shard, mesh::View());
  EXPECT_EQ(plain.copies, plain.sum);
  EXPECT_EQ(plain.owner, -1);
  const Domain sharded = layout_of({.replicate = 2, .shard = 2, .zero = 1}).dense_domain();
  EXPECT_EQ(sharded.sum, plain.sum);
  EXPECT_EQ(sharded.shard, mesh::View(Axis::kDpShard | Axis::kCp));
  EXPECT_EQ(sharded.copies, mesh::View(Axis::kDpReplicate));
  EXPECT_EQ(layout_of({.replicate = 4, .server = true}).dense_domain().owner, kServerRank);
  EXPECT_EQ(layout_of({.server = true}).dense_domain().owner, -1) << "one rank needs no server";
}

// The share of a rank, and who has the same one, are its coordinates; with context parallelism cp is the fastest of them.
TEST(Domain, SharesAndCopiesAreTheRanksCoordinates) {
  for (const Degrees& degrees : {Degrees{.replicate = 3, .tp = 2}, Degrees{.pp = 2, .replicate = 2, .shard = 3, .zero = 1},
                                 Degrees{.replicate = 2, .shard = 2, .cp = 2, .tp = 2, .zero = 3}}) {
    const Layout layout = layout_of(degrees);
    const Domain domain = layout.dense_domain();
    EXPECT_EQ(layout.mesh.degree(domain.sum), layout.mesh.degree(domain.shard) * layout.mesh.degree(domain.copies));
    EXPECT_EQ(layout.shards(), degrees.zero > 0 ? degrees.shard * degrees.cp : 1);
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const mesh::PerAxis at = layout.mesh.coordinates(rank);
      const int shard = at[Axis::kDpShard] * degrees.cp + at[Axis::kCp];
      EXPECT_EQ(layout.shard(rank), degrees.zero > 0 ? shard : 0);
      EXPECT_EQ(layout.mesh.group_rank(rank, domain.copies),
                degrees.zero > 0 ? at[Axis::kDpReplicate] : at[Axis::kDpReplicate] * degrees.shard * degrees.cp + shard);
    }
  }
}

// Rows, of which each rank of tp sees other ones: summed and shared out over tp too, tp fastest.
TEST(Domain, OfRowsTakesInTensorParallelism) {
  for (const int zero : {0, 1, 3}) {
    Layout layout = layout_of({.pp = 2, .replicate = 2, .shard = 3, .tp = 2, .zero = zero});
    const Domain domain = layout.domain(arch::ParameterGroup::kRows);
    EXPECT_EQ(domain.sum, mesh::View(Axis::kDpReplicate | Axis::kDpShard | Axis::kCp | Axis::kTp));
    EXPECT_EQ(layout.shards(arch::ParameterGroup::kRows), zero > 0 ? 6 : 1);
    EXPECT_EQ(layout.mesh.degree(domain.copies), zero > 0 ? 2 : 12);
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const mesh::PerAxis at = layout.mesh.coordinates(rank);
      EXPECT_EQ(layout.shard(rank, arch::ParameterGroup::kRows), zero > 0 ? at[Axis::kDpShard] * 2 + at[Axis::kTp] : 0);
    }
    EXPECT_EQ(name_of(layout, domain.sum), "dp_tp");
    layout.row_groups = true;
    const std::vector<GroupRef> made = groups_of(layout, 0);
    for (const mesh::View& view : {domain.sum, domain.copies})
      EXPECT_NE(std::ranges::find(made, group_over(layout, view)), made.end());
  }
  const Layout unsharded = layout_of({.tp = 2, .zero = 1});
  EXPECT_EQ(unsharded.shards(arch::ParameterGroup::kRows), 1) << "nothing is shared out where dense states are not";
}

// Experts: summed over the ranks that hold the same ones, shared out along edp_shard.
TEST(Domain, OfExpertsIsTheSameStruct) {
  const Layout layout = layout_of({.replicate = 2, .shard = 2, .tp = 2, .zero = 1});
  const mesh::Fold fold = mesh::expert_fold({.edp_replicate = 2, .edp_shard = 2, .ep = 2});
  const Domain experts{.sum = {fold, Axis::kEdpReplicate | Axis::kEdpShard},
                       .shard = {fold, Axis::kEdpShard},
                       .copies = {fold, Axis::kEdpReplicate}};
  EXPECT_EQ(name_of(layout, experts.sum), "edp");
  EXPECT_EQ(name_of(layout, experts.shard), "edp_shard");
  EXPECT_EQ(name_of(layout, experts.copies), "edp_replicate");
  EXPECT_EQ(name_of(layout, {fold, Axis::kEp}), "ep");
  EXPECT_THAT(group_ranks(layout, 5, group_over(layout, experts.sum)), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(group_ranks(layout, 5, group_over(layout, {fold, Axis::kEp})), ElementsAre(4, 5));
}

TEST(Groups, OfSamplesAreNamedByTheAxesThatHaveSeveralRanks) {
  for (const Degrees& degrees : {Degrees{.replicate = 2}, Degrees{.shard = 2, .zero = 1}, Degrees{}}) {
    const Layout layout = layout_of(degrees);
    EXPECT_EQ(name_of(layout, layout.dense_domain().sum), "dp");
  }
  const Layout one = layout_of({.shard = 2, .zero = 3});
  EXPECT_EQ(name_of(one, one.dense_domain().shard), "dp");
  const Layout both = layout_of({.replicate = 2, .shard = 2, .tp = 2, .zero = 3});
  EXPECT_EQ(name_of(both, both.dense_domain().sum), "dp");
  EXPECT_EQ(name_of(both, both.dense_domain().shard), "dp_shard");
  EXPECT_EQ(name_of(both, both.dense_domain().copies), "dp_replicate");
  const Layout context = layout_of({.shard = 2, .cp = 2, .zero = 1});
  EXPECT_EQ(name_of(context, context.samples()), "dp");
  EXPECT_EQ(name_of(context, context.tokens()), "dp_cp");
}

TEST(Groups, OfOneCopyAndOfAllAreNamedByWhatTheySpan) {
  const auto names = [](const Degrees& degrees) {
    const Layout layout = layout_of(degrees);
    return std::vector<std::string>{name_of(layout, layout.model_group()), name_of(layout, layout.all_ranks())};
  };
  EXPECT_THAT(names({.pp = 2}), ElementsAre("pp", "pp"));
  EXPECT_THAT(names({.tp = 2}), ElementsAre("tp", "tp"));
  EXPECT_THAT(names({.pp = 2, .tp = 2}), ElementsAre("model", "model"));
  EXPECT_THAT(names({.pp = 2, .replicate = 2}), ElementsAre("pp", "replica"));
  EXPECT_THAT(names({.shard = 2, .tp = 2, .zero = 1}), ElementsAre("tp", "replica"));
  EXPECT_THAT(names({.pp = 2, .replicate = 2, .tp = 2}), ElementsAre("model", "replica"));
  const Layout data = layout_of({.replicate = 3});
  EXPECT_EQ(name_of(data, data.all_ranks()), "dp");
}

TEST(Groups, OfAPairAreTwoMembersInTheirOrder) {
  const Layout layout = layout_of({.pp = 3, .replicate = 2}, "gpt2-test");  // rank = 2 pp + dp
  const GroupRef back = stage_link(2, 1, false);
  EXPECT_THAT(group_ranks(layout, 3, back), ElementsAre(5, 3));
  EXPECT_EQ(group_rank(layout, 5, back), 0);
  EXPECT_EQ(group_rank(layout, 3, back), 1);
  EXPECT_THROW(group_rank(layout, 1, back), InternalError);
  EXPECT_EQ(group_size(layout, back), 2);
  EXPECT_EQ(group_name(layout, back), "pp");
  EXPECT_NE(back, stage_link(2, 1, true)) << "activations and gradients have channels of their own";
  EXPECT_EQ(tied_pair(layout, 5), tied_pair(layout, 1));
  EXPECT_THAT(group_ranks(layout, 5, tied_pair(layout, 5)), ElementsAre(1, 5));
  EXPECT_EQ(group_name(layout, tied_pair(layout, 5)), "tied");
  EXPECT_THROW(tied_pair(layout, 3), InternalError);
}

std::vector<std::string> names_of_groups(const Layout& layout, int rank) {
  std::vector<std::string> names;
  for (const GroupRef& group : groups_of(layout, rank)) names.push_back(group_name(layout, group));
  return names;
}

// Views of the same ranks are one communicator; of one rank only who sums gradients and the world.
TEST(Groups, AreMadeOnceForViewsOfTheSameAxes) {
  EXPECT_THAT(names_of_groups(layout_of({}), 0), ElementsAre("dp", "world"));
  EXPECT_THAT(names_of_groups(layout_of({.replicate = 2}), 0), ElementsAre("dp", "world"));
  EXPECT_THAT(names_of_groups(layout_of({.shard = 2, .zero = 3}), 0), ElementsAre("dp", "world"));
  EXPECT_THAT(names_of_groups(layout_of({.tp = 2}), 0), ElementsAre("dp", "tp", "world"));
  EXPECT_THAT(names_of_groups(layout_of({.replicate = 2, .shard = 2, .zero = 1}), 3),
              ElementsAre("dp", "dp_shard", "dp_replicate", "world"));
  // 4 key/value heads on 12 ranks.
  EXPECT_THAT(names_of_groups(layout_of({.shard = 2, .tp = 12, .zero = 1}), 0), ElementsAre("dp", "tp", "kv", "replica", "world"));
  // The links of both directions, on ends and in the middle.
  const Layout pipeline = layout_of({.pp = 3, .replicate = 2}, "gpt2-test");
  EXPECT_THAT(names_of_groups(pipeline, 0), ElementsAre("dp", "pp", "pp", "pp", "tied", "replica", "world"));
  EXPECT_THAT(names_of_groups(pipeline, 2), ElementsAre("dp", "pp", "pp", "pp", "pp", "pp", "replica", "world"));
  EXPECT_THAT(names_of_groups(layout_of({.pp = 2, .tp = 2}), 0), ElementsAre("dp", "tp", "model", "pp", "pp", "world"));
}

// Making a communicator waits for its ranks: two that are in the same groups make these in the same order.
TEST(Groups, AreMadeInOneOrderEverywhere) {
  for (const Degrees& degrees : {Degrees{.pp = 3, .replicate = 2, .shard = 2, .tp = 2, .zero = 2}, Degrees{.pp = 4, .tp = 12},
                                 Degrees{.replicate = 3, .tp = 4}}) {
    for (const char* preset : {"llama-test", "gpt2-test"}) {
      const Layout layout = layout_of(degrees, preset);
      using Made = std::pair<GroupRef, std::vector<int>>;
      std::vector<std::vector<Made>> made;
      for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
        made.emplace_back();
        for (const GroupRef& group : groups_of(layout, rank)) made.back().emplace_back(group, group_ranks(layout, rank, group));
      }
      const auto with = [&](size_t rank, size_t other) {
        std::vector<Made> both;
        std::ranges::copy_if(made[rank], std::back_inserter(both),
                             [&](const Made& one) { return std::ranges::count(one.second, static_cast<int>(other)) > 0; });
        return both;
      };
      for (size_t a = 0; a < made.size(); ++a)
        for (size_t b = 0; b < a; ++b) EXPECT_EQ(with(a, b), with(b, a)) << "ranks " << a << " and " << b;
    }
  }
}

}  // namespace
}  // namespace lockstep::program
