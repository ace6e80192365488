#include "lockstep/data/sampler.h"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "lockstep/base/check.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Token i of the stream is i, in documents of uneven length.
std::shared_ptr<const TokenFile> counting_file(int32_t num_tokens) {
  const auto prefix = fresh_folder("sampler") / "data";
  TokenFileWriter writer(prefix, 100000);
  for (int32_t begin = 0, size = 1; begin < num_tokens; begin += size, size = size % 7 + 1) {
    std::vector<int32_t> ids(static_cast<size_t>(std::min(size, num_tokens - begin)));
    std::iota(ids.begin(), ids.end(), begin);
    writer.add_document(ids);
  }
  writer.finish();
  return std::make_shared<TokenFile>(prefix);
}

std::vector<int64_t> sample(const Sampler& sampler, int64_t index) {
  std::vector<int64_t> tokens(static_cast<size_t>(sampler.seq_len()) + 1);
  sampler.sample(index, tokens);
  return tokens;
}

TEST(Permutation, IsOneForEveryCount) {
  for (const int64_t count : {1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000, 4097}) {
    std::set<int64_t> places;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t place = permuted(7, 0, count, i);
      ASSERT_TRUE(place >= 0 && place < count);
      places.insert(place);
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(count));
  }
  const int64_t huge = int64_t{1} << 45;
  EXPECT_NE(permuted(7, 0, huge, 0), permuted(7, 0, huge, 1));
}

TEST(Permutation, DiffersBySeedAndEpoch) {
  const auto order = [](uint64_t seed, int64_t epoch) {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < 100; ++i) places.push_back(permuted(seed, epoch, 100, i));
    return places;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
}

// Over many epochs each sample comes first about equally often: chi-square with 49 degrees of freedom, 99.99 % bound.
TEST(Permutation, IsFair) {
  constexpr int64_t kCount = 50, kEpochs = 10000;
  for (const int64_t index : {0, 1, 49}) {
    std::vector<double> seen(kCount);
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) ++seen[static_cast<size_t>(permuted(3, epoch, kCount, index))];
    double chi_square = 0;
    const double expected = double{kEpochs} / kCount;
    for (const double count : seen) chi_square += (count - expected) * (count - expected) / expected;
    EXPECT_LT(chi_square, 94.0) << index;
  }
}

TEST(Sampler, InOrderWithoutShuffling) {
  const Sampler sampler(counting_file(103), {.seq_len = 10, .shuffle = false});
  EXPECT_EQ(sampler.samples_per_epoch(), 10);  // (103 - 1) / 10
  for (int64_t i = 0; i < 25; ++i) {
    std::vector<int64_t> expected(11);
    std::iota(expected.begin(), expected.end(), i % 10 * 10);
    EXPECT_EQ(sample(sampler, i), expected);
    EXPECT_EQ(sampler.epoch_of(i), i / 10);
  }
}

TEST(Sampler, TheLastTokenIsOnlyATarget) {
  EXPECT_EQ(Sampler(counting_file(101), {.seq_len = 10}).samples_per_epoch(), 10);
  EXPECT_EQ(Sampler(counting_file(100), {.seq_len = 10}).samples_per_epoch(), 9);
}

TEST(Sampler, ShuffledEpochsHoldEverySampleOnce) {
  const Sampler sampler(counting_file(1001), {.seed = 5, .seq_len = 8});
  const int64_t count = sampler.samples_per_epoch();
  std::vector<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t>& order = orders.emplace_back();
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<int64_t> tokens = sample(sampler, epoch * count + i);
      EXPECT_EQ(tokens.front() % 8, 0);
      EXPECT_EQ(tokens.back(), tokens.front() + 8);
      order.push_back(tokens.front() / 8);
    }
    std::vector<int64_t> sorted = order, all(static_cast<size_t>(count));
    std::sort(sorted.begin(), sorted.end());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sorted, all);
    EXPECT_NE(order, all);
  }
  EXPECT_NE(orders[0], orders[1]);
}

// However ranks cut the global batch among them, each sample is what it is: no state, any order, another instance.
TEST(Sampler, ASampleDependsOnlyOnSeedAndIndex) {
  const auto file = counting_file(2000);
  const Sampler one(file, {.seed = 9, .seq_len = 7}), other(file, {.seed = 9, .seq_len = 7});
  std::vector<std::vector<int64_t>> forward;
  for (int64_t i = 0; i < 600; ++i) forward.push_back(sample(one, i));
  for (int64_t ranks : {2, 3, 4})
    for (int64_t rank = ranks - 1; rank >= 0; --rank)
      for (int64_t i = rank; i < 600; i += ranks) ASSERT_EQ(sample(other, i), forward[static_cast<size_t>(i)]);
  EXPECT_NE(sample(Sampler(file, {.seed = 10, .seq_len = 7}), 0), forward[0]);
}

TEST(Sampler, RefusesACorpusShorterThanOneBatch) {
  const auto file = counting_file(100);
  EXPECT_THAT(refusal([&] { Sampler(file, {.seq_len = 32, .global_batch = 4}); }),
              AllOf(StartsWith("LS1223"), HasSubstr("(100 tokens - 1) / 32 seq_len = 3 samples, but a batch needs 4")));
  EXPECT_EQ(Sampler(file, {.seq_len = 32, .global_batch = 3}).samples_per_epoch(), 3);
  EXPECT_THAT(refusal([&] { Sampler(file, {.seq_len = 0}); }), StartsWith("LS1081"));
  EXPECT_THROW(Sampler(file, {.seq_len = 32}).first_token(-1), InternalError);
}

}  // namespace
}  // namespace lockstep::data
