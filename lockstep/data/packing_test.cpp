#include "lockstep/data/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;

// Each length a sequence; `documents`: the first sequence of each, and their number.
TokenIndex index_of(std::vector<int32_t> lengths, std::vector<int64_t> documents = {}) {
  TokenIndex index{.lengths = std::move(lengths), .documents = std::move(documents)};
  if (index.documents.empty())
    for (size_t i = 0; i <= index.lengths.size(); ++i) index.documents.push_back(static_cast<int64_t>(i));
  for (const int32_t length : index.lengths) index.num_tokens += length;
  return index;
}

std::vector<std::array<int64_t, 3>> pieces(const Packing& packing, int64_t sequence) {
  std::vector<std::array<int64_t, 3>> found;
  for (const PackedPiece& piece : packing.pieces(sequence)) found.push_back({piece.first, piece.length, piece.continues});
  return found;
}

TEST(Packing, DocumentsBeginWhereTheirFirstTokenIs) {
  // Of two sequences, of none, of one without tokens, and of one.
  EXPECT_THAT(document_starts(index_of({3, 2, 0, 7}, {0, 2, 2, 3, 4})), ElementsAre(0, 5, 12));
}

TEST(Packing, PutsEachPieceWhereItFitsBest) {
  // By length 7 | 5 + 3 | 3 + 2, in the order of the stream.
  const Packing packing(index_of({5, 3, 3, 2, 7}), 8);
  ASSERT_EQ(packing.num_sequences(), 3);
  EXPECT_THAT(pieces(packing, 0), ElementsAre(std::array<int64_t, 3>{0, 5, 0}, std::array<int64_t, 3>{5, 3, 0}));
  EXPECT_THAT(pieces(packing, 1), ElementsAre(std::array<int64_t, 3>{8, 3, 0}, std::array<int64_t, 3>{11, 2, 0}));
  EXPECT_THAT(pieces(packing, 2), ElementsAre(std::array<int64_t, 3>{13, 7, 0}));
  EXPECT_EQ(packing.figures().fill(), 4);
  EXPECT_EQ(packing_text(packing.figures()), "5 documents, 0 of them cut, in 3 sequences of 8 tokens, 16.67 % of them fill");
}

TEST(Packing, CutsWhatIsLongerThanASequence) {
  const Packing packing(index_of({2, 19, 8}), 8);
  ASSERT_EQ(packing.num_sequences(), 4);
  EXPECT_THAT(pieces(packing, 0), ElementsAre(std::array<int64_t, 3>{0, 2, 0}, std::array<int64_t, 3>{18, 3, 0}));
  EXPECT_THAT(pieces(packing, 1), ElementsAre(std::array<int64_t, 3>{2, 8, 1}));
  EXPECT_THAT(pieces(packing, 2), ElementsAre(std::array<int64_t, 3>{10, 8, 1}));
  EXPECT_THAT(pieces(packing, 3), ElementsAre(std::array<int64_t, 3>{21, 8, 0}));
  EXPECT_EQ(packing.figures().cut, 1);
}

// The same scheme, every sequence looked at for every piece: the same rooms are left.
std::vector<int64_t> rooms_left(std::vector<int64_t> lengths, int64_t seq_len) {
  std::ranges::sort(lengths, std::greater<>());
  std::vector<int64_t> rooms;
  for (const int64_t length : lengths) {
    auto best = rooms.end();
    for (auto room = rooms.begin(); room != rooms.end(); ++room)
      if (*room >= length && (best == rooms.end() || *room < *best)) best = room;
    if (best == rooms.end()) rooms.push_back(seq_len - length);
    else *best -= length;
  }
  std::ranges::sort(rooms);
  return rooms;
}

TEST(Packing, LeavesTheRoomsOfTheSchemeLookedUpOneByOne) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 500; ++i) lengths.push_back(i * i % 97 + i % 7 + 1);
  for (const int64_t seq_len : {16, 64, 100}) {
    const Packing packing(index_of(lengths), seq_len);
    std::vector<int64_t> rooms, parts;
    for (int64_t sequence = 0; sequence < packing.num_sequences(); ++sequence) {
      int64_t room = seq_len;
      for (const PackedPiece& piece : packing.pieces(sequence)) room -= piece.length;
      ASSERT_GE(room, 0);
      rooms.push_back(room);
    }
    for (int64_t length : lengths)
      for (; length > 0; length -= seq_len) parts.push_back(std::min(length, seq_len));
    std::ranges::sort(rooms);
    EXPECT_EQ(rooms, rooms_left(parts, seq_len)) << seq_len;
  }
}

}  // namespace
}  // namespace lockstep::data
