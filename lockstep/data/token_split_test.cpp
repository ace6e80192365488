#include "lockstep/data/token_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "lockstep/base/check.h"
#include "lockstep/base/random.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

using config::ContextSplit;
using ::testing::ElementsAre;
using Places = std::vector<std::vector<int32_t>>;

struct Case {
  int64_t length = 1;
  int ranks = 1;
  std::vector<int32_t> documents{};
};
std::string text(const Case& c) { return cat(c.length, " tokens over ", c.ranks, " ranks, ", c.documents.size(), " documents"); }

// Numbers of a stream, one after the other.
class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed, "split") {}
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_.bits(next_++) % static_cast<uint64_t>(most - least + 1));
  }

 private:
  RandomStream random_;
  uint64_t next_ = 0;
};

// Documents even in length, or mostly short ones with a few that are long, or short ones and fill at the end.
std::vector<int32_t> random_documents(int64_t length, int kind, Draws& draws) {
  std::vector<int32_t> documents = {0};
  const int64_t fill = kind == 2 ? length - draws.between(0, length / 5) : length;
  for (int64_t begin = 0; begin < fill;) {
    const bool is_long = kind == 0 || draws.between(0, 9) == 0;
    begin += draws.between(1, std::max<int64_t>(1, is_long ? length / 2 : std::min<int64_t>(length / 8, 60)));
    if (begin < fill) documents.push_back(static_cast<int32_t>(begin));
  }
  for (int64_t place = std::max<int64_t>(1, fill); place < length; ++place) documents.push_back(static_cast<int32_t>(place));
  return documents;
}

std::vector<Case> random_cases(int count) {
  Draws draws(11);
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Case c{.length = draws.between(1, i % 2 == 0 ? 50 : 1500), .ranks = static_cast<int>(draws.between(2, 8))};
    c.documents = i % 5 == 0 ? std::vector<int32_t>{0} : random_documents(c.length, i % 3, draws);
    cases.push_back(c);
  }
  return cases;
}

// Key by key.
std::vector<int64_t> counted_pairs(const Case& c, const Places& places, int64_t window) {
  std::vector<int64_t> pairs;
  for (const std::vector<int32_t>& of_rank : places) {
    int64_t sum = 0;
    for (const int32_t query : of_rank)
      for (int32_t key = 0; key <= query; ++key) {
        const auto document = [&](int32_t place) {  // each place behind the end is one
          return place >= c.length ? -1 - place : *std::prev(std::ranges::upper_bound(c.documents, place));
        };
        sum += document(key) == document(query) && (window == 0 || query - key < window);
      }
    pairs.push_back(sum);
  }
  return pairs;
}

int64_t most(const std::vector<int64_t>& values) { return *std::ranges::max_element(values); }
int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

TEST(TokenSplit, EveryPlaceIsOnOneRankAndAllHaveAsMany) {
  for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous})
    for (const Case& c : random_cases(300)) {
      const Places places = split_tokens(c.length, {.ranks = c.ranks, .split = split}, c.documents);
      const int64_t pieces = split == ContextSplit::kZigzag ? 2 * c.ranks : c.ranks;
      const int64_t here = (c.length + pieces - 1) / pieces * (pieces / c.ranks);
      ASSERT_EQ(places.size(), static_cast<size_t>(c.ranks));
      std::set<int32_t> all;
      for (const std::vector<int32_t>& of_rank : places) {
        ASSERT_EQ(static_cast<int64_t>(of_rank.size()), here) << text(c);
        ASSERT_TRUE(std::ranges::is_sorted(of_rank)) << text(c);
        all.insert(of_rank.begin(), of_rank.end());
      }
      // As many as there are and the last one is the last: each exactly once, fill behind the end.
      ASSERT_EQ(static_cast<int64_t>(all.size()), here * c.ranks) << text(c);
      ASSERT_EQ(*all.begin(), 0);
      ASSERT_EQ(*all.rbegin(), here * c.ranks - 1) << text(c);
      ASSERT_EQ(places, split_tokens(c.length, {.ranks = c.ranks, .split = split}, c.documents)) << "another one";
    }
}

TEST(TokenSplit, OneDocumentIsAZigzagOrIsCutInOrder) {
  const std::vector<int32_t> one = {0};
  EXPECT_THAT(split_tokens(8, {.ranks = 2}, one), ElementsAre(ElementsAre(0, 1, 6, 7), ElementsAre(2, 3, 4, 5)));
  EXPECT_THAT(split_tokens(7, {.ranks = 3}, one), ElementsAre(ElementsAre(0, 1, 10, 11), ElementsAre(2, 3, 8, 9), ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(split_tokens(7, {.ranks = 2, .split = ContextSplit::kContiguous}, one), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(split_tokens(3, {.ranks = 1}, one), ElementsAre(ElementsAre(0, 1, 2)));
}

TEST(TokenSplit, LongDocumentsAreZigzagsOfTheirOwn) {
  // A plain zigzag gives rank 1 four times the work of rank 0.
  const std::vector<int32_t> documents = {0, 768};
  const Places places = split_tokens(1024, {.ranks = 2}, documents);
  const std::vector<int64_t> pairs = attention_pairs(1024, places, documents);
  EXPECT_EQ(pairs[0], pairs[1]);
  EXPECT_EQ(pairs[0] + pairs[1], 768 * 769 / 2 + 256 * 257 / 2);
  EXPECT_EQ(places[0].front(), 0);
  EXPECT_EQ(places[0][192], 576);  // the fourth of four pieces of 192
  EXPECT_EQ(places[0][384], 768);
}

// Where states go from piece to piece, documents change nothing.
TEST(TokenSplit, WholePiecesAreThoseOfTheSequence) {
  const std::vector<int32_t> one = {0}, many = {0, 1, 300, 301, 900};
  for (const int ranks : {1, 2, 3, 4})
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous}) {
      const TokenSplit whole{.ranks = ranks, .split = split, .whole_pieces = true};
      EXPECT_EQ(split_tokens(1032, whole, many), split_tokens(1032, {.ranks = ranks, .split = split}, one)) << ranks;
    }
  EXPECT_NE(split_tokens(1032, {.ranks = 2}, many), split_tokens(1032, {.ranks = 2, .whole_pieces = true}, many));
}

TEST(TokenSplit, PairsAreThoseThatCountingFinds) {
  for (const Case& c : random_cases(40)) {
    if (c.length > 300) continue;
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous})
      for (const int64_t window : {0, 1, 7}) {
        const Places places = split_tokens(c.length, {.ranks = c.ranks, .split = split}, c.documents);
        ASSERT_EQ(attention_pairs(c.length, places, c.documents, window), counted_pairs(c, places, window)) << text(c) << ", window " << window;
      }
  }
}

// The busiest rank has never more than in a plain zigzag, and at most 5 % more than the mean where each has 64 tokens and more. (One
// document is a plain zigzag always, whose rank 0 has the fill.)
TEST(TokenSplit, BalancesTheWorkInsideDocuments) {
  for (const Case& c : random_cases(400)) {
    const Places places = split_tokens(c.length, {.ranks = c.ranks}, c.documents);
    const Places plain = split_tokens(c.length, {.ranks = c.ranks}, std::vector<int32_t>{0});
    const std::vector<int64_t> pairs = attention_pairs(c.length, places, c.documents), of_plain = attention_pairs(c.length, plain, c.documents);
    EXPECT_EQ(sum(pairs), sum(of_plain)) << text(c);
    EXPECT_LE(most(pairs), most(of_plain)) << text(c);
    if (c.length >= 64 * c.ranks && c.documents.size() > 1) {
      EXPECT_LE(static_cast<double>(most(pairs)) * c.ranks, 1.05 * static_cast<double>(sum(pairs))) << text(c);
    }
  }
}

TEST(TokenSplit, RefusesDocumentsThatDoNotBeginInOrder) {
  const auto split = [](std::vector<int32_t> documents) { split_tokens(8, {.ranks = 2}, documents); };
  EXPECT_THROW(split({}), InternalError);
  EXPECT_THROW(split({1}), InternalError);
  EXPECT_THROW(split({0, 5, 5}), InternalError);
  EXPECT_THROW(split({0, 8}), InternalError);
}

}  // namespace
}  // namespace lockstep::data
