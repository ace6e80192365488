#include "lockstep/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/mesh/placement.h"

namespace lockstep::mesh {
namespace {

using testing::ElementsAre;

PerAxis degrees(int pp, int dp_replicate, int dp_shard, int cp, int tp) {
  PerAxis result;
  result[Axis::kPp] = pp;
  result[Axis::kDpReplicate] = dp_replicate;
  result[Axis::kDpShard] = dp_shard;
  result[Axis::kCp] = cp;
  result[Axis::kTp] = tp;
  return result;
}

constexpr AxisSet kDp = Axis::kDpReplicate | Axis::kDpShard;

TEST(MeshTest, TpVariesFastestAndPpSlowest) {
  const Mesh mesh(degrees(2, 3, 1, 1, 4));
  EXPECT_EQ(mesh.world_size(), 24);
  EXPECT_THAT(mesh.group(0, Axis::kTp), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(mesh.group(5, kDp), ElementsAre(1, 5, 9));
  EXPECT_THAT(mesh.group(5, Axis::kPp), ElementsAre(5, 17));
  EXPECT_EQ(mesh.group_rank(17, Axis::kPp), 1);
  EXPECT_EQ(mesh.describe(17), "pp1 dp_replicate1 tp1");
}

TEST(MeshTest, OneRankIsAGroupOfOneOnEveryAxis) {
  const Mesh mesh;
  EXPECT_EQ(mesh.world_size(), 1);
  EXPECT_THAT(mesh.group(0, kDp), ElementsAre(0));
  EXPECT_EQ(mesh.describe(0), "-");
  EXPECT_EQ(mesh, Mesh::data_parallel(1));
}

TEST(MeshTest, CoordinatesAndGroupsAreConsistentOnEveryMesh) {
  for (int pp : {1, 2}) {
    for (int replicate : {1, 3}) {
      for (int shard : {1, 2}) {
        for (int cp : {1, 2}) {
          for (int tp : {1, 4}) {
            const Mesh mesh(degrees(pp, replicate, shard, cp, tp));
            for (int rank = 0; rank < mesh.world_size(); ++rank) EXPECT_EQ(mesh.rank(mesh.coordinates(rank)), rank);
            // The groups of any set of axes cut the world into parts of equal size.
            std::set<std::vector<int>> groups;
            for (int rank = 0; rank < mesh.world_size(); ++rank) {
              const auto group = mesh.group(rank, kDp);
              EXPECT_EQ(static_cast<int>(group.size()), mesh.degree(kDp));
              EXPECT_EQ(group[mesh.group_rank(rank, kDp)], rank);
              groups.insert(group);
            }
            EXPECT_EQ(static_cast<int>(groups.size()) * mesh.degree(kDp), mesh.world_size());
          }
        }
      }
    }
  }
}

TEST(MeshTest, DegreesBelowOneAreABrokenInvariant) {
  EXPECT_THROW(Mesh(degrees(1, 0, 1, 1, 1)), InternalError);
  EXPECT_THROW(Mesh().coordinates(1), InternalError);
}

TEST(ShardRangeTest, PartsAreContiguousAndDifferByAtMostOne) {
  for (int64_t length : {0, 1, 7, 8, 1023}) {
    for (int parts : {1, 2, 3, 8}) {
      int64_t next = 0;
      for (int i = 0; i < parts; ++i) {
        const Range range = shard_range(length, parts, i);
        EXPECT_EQ(range.begin, next);
        EXPECT_EQ(range.size(), length / parts + (i < length % parts ? 1 : 0));
        next = range.end;
      }
      EXPECT_EQ(next, length);
    }
  }
}

TEST(PaddedRangeTest, EqualBuffersSideBySideHoldTheWhole) {
  for (int64_t length : {0, 1, 5, 7, 8, 15, 1023}) {
    for (int parts : {1, 2, 3, 4, 8}) {
      const int64_t part = padded_part(length, parts);
      EXPECT_GE(part * parts, length);
      EXPECT_LT(part * parts, length + parts) << "no buffer is longer than it must be";
      int64_t next = 0;
      for (int i = 0; i < parts; ++i) {
        const Range range = padded_range(length, parts, i);
        EXPECT_EQ(range.begin, next);
        EXPECT_EQ(range.begin, std::min(i * part, length)) << "where it stands in the gathered buffer";
        EXPECT_TRUE(range.size() == part || range.end == length) << "padding is behind the last element alone";
        next = range.end;
      }
      EXPECT_EQ(next, length);
    }
  }
}

TEST(PaddedRangeTest, TheLastPartsMayBeShortOrEmpty) {
  EXPECT_EQ(padded_range(15, 4, 3), (Range{12, 15}));
  EXPECT_EQ(padded_range(5, 4, 2), (Range{4, 5}));
  EXPECT_EQ(padded_range(5, 4, 3), (Range{5, 5}));
  EXPECT_EQ(padded_range(8, 4, 3), shard_range(8, 4, 3));
}

}  // namespace
}  // namespace lockstep::mesh
