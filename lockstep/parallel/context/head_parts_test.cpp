// Which heads ranks have, against what a walk over all query heads says.
#include "lockstep/parallel/context/head_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/base/text.h"

namespace lockstep::parallel {
namespace {

TEST(HeadParts, EveryQueryHeadFindsTheKeyHeadThatItReads) {
  for (const auto& [heads, kv_heads] : {std::pair{8, 8}, {8, 2}, {6, 3}, {12, 4}, {7, 7}, {3, 1}, {10, 5}})
    for (int ranks = 1; ranks <= 9; ++ranks) {
      SCOPED_TRACE(cat(heads, " heads, ", kv_heads, " of keys, ", ranks, " ranks"));
      const HeadParts parts(heads, kv_heads, ranks);
      EXPECT_EQ(parts.heads_each(), (heads + ranks - 1) / ranks);
      int64_t next = 0, most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const mesh::Range here = parts.heads_of(rank), keys = parts.kv_heads_of(rank);
        EXPECT_TRUE(here.begin == next || here.size() == 0);
        next = std::max(next, here.end);
        std::set<int64_t> read;
        const std::vector<int64_t> reads = parts.reads_of(rank);
        EXPECT_TRUE(reads.empty() || std::ssize(reads) == parts.heads_each());
        for (int64_t i = 0; i < here.size(); ++i) {
          const int64_t wanted = (here.begin + i) / (heads / kv_heads);
          const int64_t found = reads.empty() ? i / (parts.heads_each() / parts.kv_heads_each()) : reads[static_cast<size_t>(i)];
          EXPECT_EQ(keys.begin + found, wanted);
          read.insert(wanted);
        }
        EXPECT_EQ(keys.size(), static_cast<int64_t>(read.size()));
        most = std::max(most, keys.size());
      }
      EXPECT_EQ(next, heads);
      EXPECT_EQ(parts.kv_heads_each(), most);
    }
}

}  // namespace
}  // namespace lockstep::parallel
