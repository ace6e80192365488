// Axis sets, folds, and the groups that views make on meshes of all shapes.
#include "lockstep/mesh/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/mesh/mesh.h"

namespace lockstep::mesh {
namespace {

using testing::ElementsAre;
using Ranks = std::vector<int>;

PerAxis degrees(int pp, int dp_replicate, int dp_shard, int cp, int tp) {
  PerAxis result;
  result[Axis::kPp] = pp;
  result[Axis::kDpReplicate] = dp_replicate;
  result[Axis::kDpShard] = dp_shard;
  result[Axis::kCp] = cp;
  result[Axis::kTp] = tp;
  return result;
}

std::set<Ranks> groups_of(const Mesh& mesh, const View& view) {
  std::set<Ranks> groups;
  for (int rank = 0; rank < mesh.world_size(); ++rank) groups.insert(mesh.group(rank, view));
  return groups;
}

// Groups of equal size that hold every rank once; index in a group and member are inverse.
void expect_partition(const Mesh& mesh, const View& view) {
  std::set<int> seen;
  for (const Ranks& group : groups_of(mesh, view)) {
    ASSERT_EQ(static_cast<int>(group.size()), mesh.degree(view)) << view_name(view);
    for (size_t i = 0; i < group.size(); ++i) {
      EXPECT_TRUE(seen.insert(group[i]).second) << view_name(view) << ": rank " << group[i] << " is in two groups";
      EXPECT_EQ(mesh.group_rank(group[i], view), static_cast<int>(i));
      EXPECT_EQ(mesh.member(group[0], view, static_cast<int>(i)), group[i]);
      EXPECT_EQ(mesh.member(group.back(), view, static_cast<int>(i)), group[i]);
      EXPECT_TRUE(i == 0 || group[i - 1] < group[i]) << "ranks ascend";
    }
  }
  EXPECT_EQ(static_cast<int>(seen.size()), mesh.world_size());
}

// By the definition: who differs from the rank along these axes alone.
Ranks group_by_coordinates(const Mesh& mesh, int rank, AxisSet axes) {
  Ranks group;
  const PerAxis at = mesh.coordinates(rank);
  for (int other = 0; other < mesh.world_size(); ++other) {
    const PerAxis there = mesh.coordinates(other);
    bool same = true;
    for (const Axis axis : kAxes) same = same && (axes.contains(axis) || there[axis] == at[axis]);
    if (same) group.push_back(other);
  }
  return group;
}

class RandomMesh {
 public:
  Mesh next() {
    const auto degree = [&] { return std::uniform_int_distribution<int>(1, 3)(numbers_); };
    return Mesh(degrees(degree(), degree(), degree(), degree(), degree()));
  }
  AxisSet some_of(AxisSet all) {
    AxisSet some;
    for (const Axis axis : all)
      if (std::uniform_int_distribution<int>(0, 1)(numbers_) == 1) some = some | axis;
    return some;
  }
  // A divisor of `whole`, which is the rest of it from now on.
  int factor_of(int& whole) {
    std::vector<int> divisors;
    for (int i = 1; i <= whole; ++i)
      if (whole % i == 0) divisors.push_back(i);
    const int factor = divisors[std::uniform_int_distribution<size_t>(0, divisors.size() - 1)(numbers_)];
    whole /= factor;
    return factor;
  }

 private:
  std::mt19937 numbers_{7};
};

constexpr AxisSet kMeshAxes = Axis::kPp | Axis::kDpReplicate | Axis::kDpShard | Axis::kCp | Axis::kTp;
constexpr AxisSet kExpertAxes = Axis::kEdpReplicate | Axis::kEdpShard | Axis::kEp | Axis::kEtp;

TEST(AxisSet, IsASetInTheOrderOfTheAxes) {
  constexpr AxisSet kSome = Axis::kTp | Axis::kPp | Axis::kCp;
  std::vector<Axis> axes;
  for (const Axis axis : kSome) axes.push_back(axis);
  EXPECT_THAT(axes, ElementsAre(Axis::kPp, Axis::kCp, Axis::kTp));
  static_assert(kSome.size() == 3 && kSome.contains(Axis::kCp) && !kSome.contains(Axis::kEp));
  static_assert(kSome.without(Axis::kCp) == (Axis::kPp | Axis::kTp));
  static_assert((kSome & (Axis::kTp | Axis::kEp)) == AxisSet(Axis::kTp));
  static_assert(AxisSet().empty() && kSome.contains(AxisSet()));
  EXPECT_EQ(view_name(kSome), "pp x cp x tp");
  EXPECT_EQ(view_name({}), "-");
}

TEST(View, OfTheMeshGroupsWhoDiffersAlongItsAxesAlone) {
  RandomMesh random;
  for (int i = 0; i < 40; ++i) {
    const Mesh mesh = random.next();
    const AxisSet axes = random.some_of(kMeshAxes);
    expect_partition(mesh, axes);
    EXPECT_EQ(mesh.degree(View(axes)), mesh.degree(axes));
    for (int rank = 0; rank < mesh.world_size(); ++rank)
      ASSERT_EQ(mesh.group(rank, axes), group_by_coordinates(mesh, rank, axes)) << mesh.describe(rank) << " over " << view_name(axes);
  }
}

TEST(View, OfAFoldPartitionsTheRanksTooAndStaysInItsBlock) {
  RandomMesh random;
  for (int i = 0; i < 40; ++i) {
    const Mesh mesh = random.next();
    int rest = mesh.world_size() / mesh.degree(Axis::kPp);
    const int etp = random.factor_of(rest), ep = random.factor_of(rest), edp_shard = random.factor_of(rest);
    const Fold fold = expert_fold({.edp_replicate = rest, .edp_shard = edp_shard, .ep = ep, .etp = etp});
    expect_partition(mesh, {fold, random.some_of(kExpertAxes | Axis::kPp)});
    expect_partition(mesh, {fold, {}});
    // All factors are the block, and with pp beside it the world.
    for (int rank = 0; rank < mesh.world_size(); ++rank)
      ASSERT_EQ(mesh.group(rank, {fold, kExpertAxes}), mesh.group(rank, fold.block()));
    EXPECT_EQ(mesh.degree(View(fold, kExpertAxes | Axis::kPp)), mesh.world_size());
  }
}

// Rank order tp-cp-ep-dp-pp of Megatron-LM's expert layers, with expert tensor parallelism fastest: 4 experts' ranks over
// dp 4 x tp 2 take two data-parallel ranks and both halves of their layers.
TEST(ExpertFold, ExpertParallelRanksSpanTpAndPartOfDp) {
  const Mesh mesh(degrees(1, 1, 4, 1, 2));
  const Fold fold = expert_fold({.edp_shard = 2, .ep = 4});
  EXPECT_THAT(groups_of(mesh, {fold, Axis::kEp}), ElementsAre(Ranks{0, 1, 2, 3}, Ranks{4, 5, 6, 7}));
  EXPECT_THAT(groups_of(mesh, {fold, Axis::kEdpShard}), ElementsAre(Ranks{0, 4}, Ranks{1, 5}, Ranks{2, 6}, Ranks{3, 7}));
  EXPECT_EQ(groups_of(mesh, {fold, Axis::kEtp}).size(), 8U);
  EXPECT_THAT(groups_of(mesh, Axis::kTp), ElementsAre(Ranks{0, 1}, Ranks{2, 3}, Ranks{4, 5}, Ranks{6, 7}));
}

// pp 2 x dp 2 x cp 2 x tp 2, folded to edp 2 x ep 2 x etp 2 in each stage.
TEST(ExpertFold, FoldsTheRanksOfEachStageByThemselves) {
  const Mesh mesh(degrees(2, 2, 1, 2, 2));
  const Fold fold = expert_fold({.edp_replicate = 2, .ep = 2, .etp = 2});
  EXPECT_THAT(groups_of(mesh, {fold, Axis::kEtp}), ElementsAre(Ranks{0, 1}, Ranks{2, 3}, Ranks{4, 5}, Ranks{6, 7}, Ranks{8, 9},
                                                               Ranks{10, 11}, Ranks{12, 13}, Ranks{14, 15}));
  EXPECT_THAT(groups_of(mesh, {fold, Axis::kEp}), ElementsAre(Ranks{0, 2}, Ranks{1, 3}, Ranks{4, 6}, Ranks{5, 7}, Ranks{8, 10},
                                                              Ranks{9, 11}, Ranks{12, 14}, Ranks{13, 15}));
  EXPECT_THAT(groups_of(mesh, {fold, Axis::kEdpReplicate}), ElementsAre(Ranks{0, 4}, Ranks{1, 5}, Ranks{2, 6}, Ranks{3, 7}, Ranks{8, 12},
                                                                        Ranks{9, 13}, Ranks{10, 14}, Ranks{11, 15}));
  EXPECT_THAT(mesh.group(5, {fold, Axis::kPp | Axis::kEtp}), ElementsAre(4, 5, 12, 13));
}

// pp 2 x dp 8, ep 4 on nodes of two.
TEST(ExpertNodeFold, NeighboursAreOnANode) {
  const Mesh mesh(degrees(2, 8, 1, 1, 1));
  const ExpertDegrees grid{.edp_replicate = 2, .ep = 2, .etp = 2};
  const Fold fold = expert_node_fold(grid, 2);
  EXPECT_THAT(mesh.group(6, {fold, Axis::kEpNode}), ElementsAre(6, 7));
  EXPECT_THAT(mesh.group(6, {fold, Axis::kEpNodes}), ElementsAre(4, 6));
  EXPECT_THAT(mesh.group(15, {fold, Axis::kEpNodes}), ElementsAre(13, 15));
  EXPECT_EQ(view_name({fold, Axis::kEpNodes}), "ep_nodes");
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    EXPECT_EQ(mesh.group(rank, {fold, Axis::kEpNodes | Axis::kEpNode}), mesh.group(rank, {expert_fold(grid), Axis::kEp | Axis::kEtp}));
  expect_partition(mesh, {fold, Axis::kEpNodes});
  EXPECT_THROW(expert_node_fold(grid, 3), InternalError);
}

// As many neighbours of a tp group as hold one key/value head.
TEST(HeadsFold, GroupsNeighboursOfTp) {
  for (const int tp : {1, 2, 4, 8})
    for (int copies = 1; copies <= tp; copies *= 2) {
      const Mesh mesh(degrees(2, 1, 2, 1, tp));
      const View heads{heads_fold(tp, copies), Axis::kKvCopies};
      expect_partition(mesh, heads);
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const Ranks ranks = mesh.group(rank, Axis::kTp);
        const int here = mesh.group_rank(rank, Axis::kTp);
        const auto first = ranks.begin() + here / copies * copies;
        EXPECT_EQ(mesh.group(rank, heads), Ranks(first, first + copies));
        EXPECT_EQ(mesh.group_rank(rank, heads), here % copies);
      }
    }
  EXPECT_EQ(view_name({heads_fold(4, 2), Axis::kKvCopies}), "kv");
}

TEST(View, ReducedKeepsTheAxesThatHaveSeveralRanks) {
  const Mesh mesh(degrees(1, 2, 1, 1, 4));
  EXPECT_EQ(mesh.several(), Axis::kDpReplicate | Axis::kTp);
  EXPECT_EQ(mesh.reduced(Axis::kPp | Axis::kDpReplicate | Axis::kDpShard), View(Axis::kDpReplicate));
  EXPECT_EQ(mesh.reduced(Axis::kDpShard), View());
  const Fold fold = expert_fold({.edp_replicate = 2, .ep = 4});
  EXPECT_EQ(mesh.several(fold), Axis::kEdpReplicate | Axis::kEp);
  EXPECT_EQ(mesh.reduced({fold, Axis::kEp | Axis::kEtp}), View(fold, Axis::kEp));
  EXPECT_EQ(mesh.reduced({fold, Axis::kPp | Axis::kEtp}), View());
}

TEST(View, AMillionRanksAreArithmetic) {
  const Mesh mesh(degrees(16, 64, 128, 1, 8));
  ASSERT_EQ(mesh.world_size(), 1 << 20);
  const View experts{expert_fold({.edp_replicate = 64, .edp_shard = 16, .ep = 64}), Axis::kEp};
  EXPECT_EQ(mesh.degree(experts), 64);
  int64_t sum = 0;
  for (int rank = 0; rank < mesh.world_size(); ++rank) sum += mesh.group_rank(rank, experts);
  EXPECT_EQ(sum, int64_t{mesh.world_size()} * 63 / 2);
  EXPECT_EQ(mesh.member(mesh.world_size() - 1, experts, 0), mesh.world_size() - 64);
}

TEST(View, ABrokenFoldIsABrokenInvariant) {
  const Mesh mesh(degrees(1, 2, 1, 1, 4));
  EXPECT_THROW(Fold(Axis::kPp | Axis::kTp, {{Axis::kEp, 2}}), InternalError) << "no neighbours";
  EXPECT_THROW(Fold({}, {}), InternalError);
  EXPECT_THROW(Fold(Axis::kTp, {{Axis::kCp, 4}}), InternalError) << "an axis of the mesh as a factor";
  EXPECT_THROW(Fold(Axis::kTp, {{Axis::kEp, 0}}), InternalError);
  EXPECT_THROW(heads_fold(4, 3), InternalError);
  EXPECT_THROW(mesh.degree(View(expert_fold({.ep = 4}), Axis::kEp)), InternalError) << "4 ranks over a block of 8";
  EXPECT_THROW(mesh.group(0, Axis::kEp), InternalError) << "an axis that only a fold has";
  EXPECT_THROW(mesh.group(0, {heads_fold(4, 2), Axis::kTp}), InternalError) << "tp is what was folded";
  EXPECT_THROW(mesh.member(0, Axis::kTp, 4), InternalError);
  EXPECT_THROW(mesh.group_rank(8, Axis::kTp), InternalError);
}

}  // namespace
}  // namespace lockstep::mesh
