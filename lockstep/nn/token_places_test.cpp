// Spans of keys against a look at every key.
#include "lockstep/nn/token_places.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "lockstep/data/token_split.h"

namespace lockstep::nn {
namespace {

// Two sequences, each of its own documents.
constexpr int64_t kLength = 29;
const std::vector<std::vector<int32_t>>& documents() {
  static const std::vector<std::vector<int32_t>> all = {{0}, {0, 1, 12, 13, 20}};
  return all;
}

// As fill behind the end has it, each such place is a document.
int32_t document_of(size_t sequence, int32_t place) {
  if (place >= kLength) return place;
  int32_t found = 0;
  for (const int32_t begin : documents()[sequence])
    if (begin <= place) found = begin;
  return found;
}

TokenPlaces places_of(const data::TokenSplit& split, int rank) {
  std::vector<std::vector<std::vector<int32_t>>> places;  // by sequence and rank
  for (const std::vector<int32_t>& of_sequence : documents()) places.push_back(data::split_tokens(kLength, split, of_sequence));
  const auto here = static_cast<int64_t>(places[0][0].size());
  TokenPlaces made;
  made.length = kLength;
  made.rank = rank;
  made.first_seen = at::empty({2, here}, at::kInt);
  for (size_t r = 0; r < places[0].size(); ++r) {
    const at::Tensor index = at::empty({2, here}, at::kInt);
    for (size_t b = 0; b < 2; ++b) std::ranges::copy(places[b][r], index.data_ptr<int32_t>() + static_cast<int64_t>(b) * here);
    if (static_cast<int>(r) == rank) made.index = index;
    if (split.ranks > 1) made.index_of_ranks.push_back(index);
  }
  for (int64_t i = 0; i < 2 * here; ++i)
    made.first_seen.data_ptr<int32_t>()[i] = document_of(static_cast<size_t>(i / here), made.index.const_data_ptr<int32_t>()[i]);
  return made;
}

// Exactly the keys between first and last are those that place `query` sees; neither end falls from one query to the next.
void expect_spans(const TokenPlaces& places, const KeySpans& spans, const std::vector<const int32_t*>& keys, int64_t count, int64_t window) {
  const int64_t here = places.index.size(1);
  for (int64_t i = 0; i < 2 * here; ++i) {
    const auto sequence = static_cast<size_t>(i / here);
    const int32_t query = places.index.const_data_ptr<int32_t>()[i];
    const int32_t first = spans.first.const_data_ptr<int32_t>()[i], last = spans.last.const_data_ptr<int32_t>()[i];
    for (int64_t key = 0; key < count; ++key) {
      const int32_t place = keys[sequence][key];
      const bool seen = place <= query && document_of(sequence, place) == document_of(sequence, query) && (window == 0 || query - place < window);
      ASSERT_EQ(first <= key && key < last, seen) << "place " << query << " and key at " << place << ", window " << window;
    }
    if (i % here > 0) {
      ASSERT_GE(first, spans.first.const_data_ptr<int32_t>()[i - 1]);
      ASSERT_GE(last, spans.last.const_data_ptr<int32_t>()[i - 1]);
    }
  }
}

TEST(TokenPlaces, SpansAreWhatEachQuerySees) {
  using config::ContextSplit;
  for (const data::TokenSplit& split : {data::TokenSplit{}, {.ranks = 2}, {.ranks = 3}, {.ranks = 4, .split = ContextSplit::kContiguous}})
    for (int rank = 0; rank < split.ranks; ++rank)
      for (const int64_t window : {0, 1, 6}) {
        const TokenPlaces places = places_of(split, rank);
        EXPECT_EQ(places.ranks(), split.ranks);
        const int64_t here = places.index.size(1);
        for (int owner = 0; owner < split.ranks; ++owner) {
          const TokenPlaces others = places_of(split, owner);
          const int32_t* const first = others.index.const_data_ptr<int32_t>();
          expect_spans(places, spans_of(places, owner, window), {first, first + here}, here, window);
        }
        std::vector<int32_t> all;
        for (int32_t place = 0; place < kLength; ++place) all.push_back(place);
        const KeySpans of_all = spans_of_all(places, window);
        expect_spans(places, of_all, {all.data(), all.data()}, kLength, window);
      }
}

}  // namespace
}  // namespace lockstep::nn
