#include "lockstep/launch/gpu_share.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::launch {
namespace {

Identity rank_here(int local_rank, int local_size) { return {.local_rank = local_rank, .local_size = local_size}; }

TEST(GpuShare, OneEachWhileThereAreEnough) {
  for (int rank = 0; rank < 4; ++rank) {
    const GpuShare share = gpu_share(rank_here(rank, 4), 8);
    EXPECT_EQ(share.gpu, rank);
    EXPECT_EQ(share.first, rank);
    EXPECT_EQ(share.ranks, 1);
  }
}

TEST(GpuShare, NeighboursShareWhereThereAreFewer) {
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(gpu_share(rank_here(rank, 4), 1).gpu, 0);
  EXPECT_EQ(gpu_share(rank_here(3, 4), 1).ranks, 4);
  const std::vector<int> gpus = {0, 0, 0, 1, 1}, firsts = {0, 0, 0, 3, 3}, ranks = {3, 3, 3, 2, 2};  // 5 on 2
  for (int rank = 0; rank < 5; ++rank) {
    const GpuShare share = gpu_share(rank_here(rank, 5), 2);
    EXPECT_EQ(share.gpu, gpus[static_cast<size_t>(rank)]);
    EXPECT_EQ(share.first, firsts[static_cast<size_t>(rank)]);
    EXPECT_EQ(share.ranks, ranks[static_cast<size_t>(rank)]);
  }
}

// Every rank lies in its own share, the shares of the GPUs follow each other, and none is more than one rank larger.
TEST(GpuShare, IsTheSameForAllWhoShare) {
  for (int gpus = 1; gpus <= 8; ++gpus)
    for (int here = gpus + 1; here <= 20; ++here)
      for (int rank = 0; rank < here; ++rank) {
        const GpuShare share = gpu_share(rank_here(rank, here), gpus);
        EXPECT_GE(rank, share.first);
        EXPECT_LT(rank, share.first + share.ranks);
        EXPECT_EQ(gpu_share(rank_here(share.first, here), gpus).gpu, share.gpu);
        EXPECT_LT(share.gpu, gpus);
        EXPECT_GE(share.ranks, here / gpus);
        EXPECT_LE(share.ranks, (here + gpus - 1) / gpus);
      }
}

TEST(GpuShare, ByTurnsWhereNobodyTellsHowManyAreHere) {
  EXPECT_EQ(gpu_share(rank_here(0, 0), 2).gpu, 0);
  EXPECT_EQ(gpu_share(rank_here(3, 0), 2).gpu, 1);
  EXPECT_EQ(gpu_share(rank_here(3, 0), 2).ranks, 1);
}

}  // namespace
}  // namespace lockstep::launch
