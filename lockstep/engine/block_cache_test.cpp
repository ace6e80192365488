#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "lockstep/engine/memory_tracker.h"

namespace lockstep::engine {
namespace {

TEST(BlockCache, ClassesHoldWhatIsAskedAndWasteAtMostAQuarter) {
  for (size_t bytes = 1; bytes < (size_t{1} << 34); bytes += 1 + bytes / 7) {
    const size_t size = BlockCache::size_class(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_EQ(size % 64, 0u);
    EXPECT_LE(size, std::max<size_t>(64, bytes + bytes / 4 + 64)) << bytes;
    EXPECT_EQ(BlockCache::size_class(size), size);
  }
}

TEST(BlockCache, UsedBlocksComeBackAndLiveOnesAreApart) {
  BlockCache cache;
  std::set<void*> first;
  for (int i = 0; i < 8; ++i) {
    void* block = cache.take(3 << 20);
    std::memset(block, i, 3 << 20);
    EXPECT_TRUE(first.insert(block).second);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
  }
  EXPECT_EQ(cache.fresh_blocks(), 8);
  for (void* block : first) cache.give_back(block, 3 << 20);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(first.contains(cache.take(3 << 20)));
  EXPECT_EQ(cache.fresh_blocks(), 8);
}

TEST(BlockCache, ManyThreads) {
  BlockCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&cache, t] {
      for (size_t i = 0; i < 2000; ++i) {
        const size_t bytes = 64 + i % 5 * 1000;
        auto* block = static_cast<unsigned char*>(cache.take(bytes));
        std::memset(block, t, bytes);
        for (size_t at = 0; at < bytes; ++at) ASSERT_EQ(block[at], t);
        cache.give_back(block, bytes);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(cache.fresh_blocks(), 4 * 5);
}

}  // namespace
}  // namespace lockstep::engine
