// Groups by axis, and servers for ranks.
#include "lockstep/program/predict/rank_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/config/run_config.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/test_program.h"

namespace lockstep::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Degrees {
  int tp = 1, pp = 1, dp = 1, zero = 0;
};

Layout layout_of(const Degrees& degrees, const std::string& preset = "gpt2-test") {
  config::RunConfig config;
  config.model.preset = preset;
  config.parallel.tp = degrees.tp;
  config.parallel.pp = degrees.pp;
  config.parallel.dp = degrees.dp;
  config.parallel.zero = degrees.zero;
  config.train.micro_batch = 1;
  config.train.seq_len = 16;
  config.train.global_batch = 4 * degrees.dp;
  return make_layout(config, arch::resolve_model(config.model, 0), degrees.tp * degrees.pp * degrees.dp);
}

std::vector<std::vector<int>> groups_of(const Layout& layout, const std::string& axis) {
  for (const AxisGroups& groups : axis_groups(layout))
    if (groups.axis == axis) return groups.groups;
  return {};
}

TEST(RankMap, GroupsByAxis) {
  // Rank = (pp * 2 + dp) * 2 + tp.
  const Layout layout = layout_of({.tp = 2, .pp = 2, .dp = 2, .zero = 1}, "llama-test");
  EXPECT_THAT(groups_of(layout, "tp"), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(groups_of(layout, "dp_shard"), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4, 6), ElementsAre(5, 7)));
  EXPECT_THAT(groups_of(layout, "pp"), ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(groups_of(layout, "dp_replicate"), IsEmpty());
  EXPECT_EQ(axis_groups(layout)[0].axis, "tp");
  EXPECT_THAT(axis_groups(layout_of({})), IsEmpty());
}

TEST(RankMap, TheRanksOfATiedEmbeddingAreAGroup) {
  // First and last stage of each pipeline.
  EXPECT_THAT(groups_of(layout_of({.pp = 3, .dp = 2}), "tied"), ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5)));
  EXPECT_THAT(groups_of(layout_of({.pp = 2}, "llama-test"), "tied"), IsEmpty());
}

TEST(RankMap, TensorInsidePipelineNextDataAcross) {
  const Layout layout = layout_of({.tp = 2, .pp = 2, .dp = 2});
  const RankMap map = placed_by_axis(layout, 4);
  EXPECT_EQ(map.nodes(), 2);
  // The first copy: ranks 0, 1 (stage 0) and 4, 5 (stage 1).
  EXPECT_THAT(map.ranks_on(0), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(map.ranks_on(1), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(nodes_of_copies(layout, map), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(placed_in_order(layout, 4).ranks_on(0), ElementsAre(0, 1, 2, 3));
  const RankMap pairs = placed_by_axis(layout, 2);
  EXPECT_THAT(nodes_of_copies(layout, pairs), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(pairs.ranks_on(1), ElementsAre(4, 5));
}

TEST(RankMap, NoTensorGroupIsCut) {
  const Layout layout = layout_of({.tp = 3, .pp = 2, .dp = 2});
  const RankMap map = placed_by_axis(layout, 8);
  EXPECT_EQ(map.empty_places(), 2);
  EXPECT_EQ(map.nodes(), 2);
  for (const std::vector<int>& group : groups_of(layout, "tp"))
    for (const int rank : group) EXPECT_EQ(map.node_of(rank), map.node_of(group[0]));
  EXPECT_EQ(placed_by_axis(layout_of({.tp = 4}), 2).nodes(), 2);
}

TEST(RankMap, TrafficIsThatOfTheLedgersAndStaysWhereItShould) {
  const Layout layout = layout_of({.tp = 2, .dp = 2, .zero = 1});
  const Program program = make_program(layout);
  int64_t all = 0;
  for (int rank = 0; rank < 4; ++rank) all += sent_total(predict_ledger(layout, program, rank));
  const std::vector<AxisTraffic> axes = axis_traffic(layout, program, {placed_by_axis(layout, 2), placed_by_axis(layout, 4)});
  int64_t sum = 0;
  for (const AxisTraffic& axis : axes) {
    sum += axis.sent;
    EXPECT_EQ(axis.between_nodes[1], 0) << axis.axis;
    if (axis.axis == "tp") {
      EXPECT_EQ(axis.between_nodes[0], 0);
    } else if (axis.axis == "dp_shard") {
      EXPECT_EQ(axis.between_nodes[0], axis.sent);
    }
  }
  EXPECT_EQ(sum, all);
}

TEST(RankMap, Text) {
  const Layout layout = layout_of({.tp = 2, .dp = 2, .zero = 1});
  EXPECT_EQ(groups_table(layout), "axis      groups  of ranks\n"
                                  "tp        2 x 2   0, 1 | 2, 3\n"
                                  "dp_shard  2 x 2   0, 2 | 1, 3\n");
  const std::string page = rank_map_page(make_program(layout), layout, 2);
  EXPECT_THAT(page, HasSubstr("server  ranks  holds\n     0  0..1   copy 0\n     1  2..3   copy 1\n"));
  EXPECT_THAT(page, HasSubstr("a copy of the model stays on one server\n"));
  EXPECT_THAT(rank_map_page(make_program(layout), layout, 3), HasSubstr("no tp group is cut, 1 place of each stays empty"));
  EXPECT_EQ(rank_map_page(make_program(layout_of({})), layout_of({}), 8), "");
}

}  // namespace
}  // namespace lockstep::program
