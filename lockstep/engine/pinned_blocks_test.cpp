#include "lockstep/engine/host_states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

namespace lockstep::engine {
namespace {

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

// Every block lies in its piece, on its own.
void expect_places(const std::vector<int64_t>& blocks) {
  const PinnedPlan plan = plan_pinned(blocks);
  ASSERT_EQ(plan.places.size(), blocks.size());
  std::vector<std::vector<std::pair<int64_t, int64_t>>> taken(plan.pieces.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& [piece, offset] = plan.places[i];
    EXPECT_EQ(offset % 256, 0);
    EXPECT_LE(offset + blocks[i], plan.pieces.at(piece));
    taken[piece].emplace_back(offset, offset + blocks[i]);
  }
  for (size_t piece = 0; piece < taken.size(); ++piece) {
    EXPECT_TRUE(std::has_single_bit(static_cast<uint64_t>(plan.pieces[piece])));
    EXPECT_FALSE(taken[piece].empty());
    std::sort(taken[piece].begin(), taken[piece].end());
    for (size_t i = 1; i < taken[piece].size(); ++i) EXPECT_LE(taken[piece][i - 1].second, taken[piece][i].first);
  }
}

TEST(PinnedBlocks, LieSideBySide) {
  expect_places({});
  expect_places({1});
  expect_places({257, 1, 4096, 4097, 300, 300, 300});
  expect_places(std::vector<int64_t>(100, 12345));
}

// A Llama of 8 B: 32 blocks of 218 M parameters at 12 bytes, embedding and head of 525 M. One by one they would take half as
// much again.
TEST(PinnedBlocks, TakeLittleMoreThanTheirBytes) {
  std::vector<int64_t> blocks(32, int64_t{218'112'000} * 12);
  blocks.insert(blocks.end(), 2, int64_t{525'340'672} * 12);
  int64_t one_by_one = 0;
  for (const int64_t block : blocks) one_by_one += static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(block)));
  expect_places(blocks);
  const auto bytes = static_cast<double>(sum(blocks));
  EXPECT_GT(static_cast<double>(one_by_one), 1.45 * bytes);
  EXPECT_LT(static_cast<double>(sum(plan_pinned(blocks).pieces)), 1.1 * bytes);
}

}  // namespace
}  // namespace lockstep::engine
