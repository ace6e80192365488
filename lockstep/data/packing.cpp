#include "lockstep/data/packing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

// In the order of the stream.
std::vector<PackedPiece> pieces_of(const std::vector<int64_t>& starts, int64_t seq_len) {
  std::vector<PackedPiece> pieces;
  for (size_t i = 0; i + 1 < starts.size(); ++i)
    for (int64_t first = starts[i], left; first < starts[i + 1]; first += seq_len) {
      left = starts[i + 1] - first;
      pieces.push_back({.first = first, .length = static_cast<int32_t>(std::min(left, seq_len)), .continues = left > seq_len});
    }
  return pieces;
}

// Places of the pieces, the longest first, equal ones in the order of the stream.
std::vector<int64_t> longest_first(const std::vector<PackedPiece>& pieces) {
  std::vector<int64_t> order(pieces.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](int64_t piece) { return pieces[static_cast<size_t>(piece)].length; });
  return order;
}

// Sequences that have room, by how much.
class OpenSequences {
 public:
  explicit OpenSequences(int64_t seq_len) : by_room_(static_cast<size_t>(seq_len) + 1) {}

  // That with the least room of at least `length`; -1: there is none.
  int64_t take(int64_t length, int64_t& room) {
    const auto found = rooms_.lower_bound(length);
    if (found == rooms_.end()) return -1;
    room = *found;
    std::vector<int64_t>& sequences = by_room_[static_cast<size_t>(room)];
    const int64_t sequence = sequences.back();
    sequences.pop_back();
    if (sequences.empty()) rooms_.erase(found);
    return sequence;
  }
  void put(int64_t sequence, int64_t room) {
    if (room == 0) return;
    by_room_[static_cast<size_t>(room)].push_back(sequence);
    rooms_.insert(room);
  }

 private:
  std::vector<std::vector<int64_t>> by_room_;
  std::set<int64_t> rooms_{};  // those that some sequence has
};

struct Packed {
  std::vector<int64_t> sequence_of;  // by piece
  int64_t count = 0;
};

Packed best_fit(const std::vector<PackedPiece>& pieces, int64_t seq_len) {
  Packed packed{.sequence_of = std::vector<int64_t>(pieces.size())};
  OpenSequences open(seq_len);
  for (const int64_t piece : longest_first(pieces)) {
    const int64_t length = pieces[static_cast<size_t>(piece)].length;
    int64_t room = seq_len, sequence = open.take(length, room);
    if (sequence < 0) sequence = packed.count++;
    packed.sequence_of[static_cast<size_t>(piece)] = sequence;
    open.put(sequence, room - length);
  }
  return packed;
}

// Numbers of sequences anew, in the order in which the stream comes to them.
void number_by_first(Packed& packed) {
  std::vector<int64_t> number(static_cast<size_t>(packed.count), -1);
  int64_t next = 0;
  for (int64_t& sequence : packed.sequence_of) {
    int64_t& found = number[static_cast<size_t>(sequence)];
    if (found < 0) found = next++;
    sequence = found;
  }
}

}  // namespace

std::vector<int64_t> document_starts(const TokenIndex& index) {
  std::vector<int64_t> starts;
  int64_t first = 0;
  for (size_t document = 0; document + 1 < index.documents.size(); ++document) {
    int64_t tokens = 0;
    for (int64_t i = index.documents[document]; i < index.documents[document + 1]; ++i) tokens += index.lengths[static_cast<size_t>(i)];
    if (tokens > 0) starts.push_back(first);
    first += tokens;
  }
  LOCKSTEP_CHECK_EQ(first, index.num_tokens, "tokens of all documents");
  starts.push_back(first);
  return starts;
}

std::string packing_text(const PackingFigures& figures) {
  return cat(figures.documents, " documents, ", figures.cut, " of them cut, in ", figures.sequences, " sequences of ", figures.seq_len,
             " tokens, ", number_text(std::round(1e4 * figures.fill_share()) / 100), " % of them fill");
}

Packing::Packing(const TokenIndex& index, int64_t seq_len) {
  const std::vector<int64_t> starts = document_starts(index);
  const std::vector<PackedPiece> in_stream = pieces_of(starts, seq_len);
  Packed packed = best_fit(in_stream, seq_len);
  number_by_first(packed);
  begins_.resize(static_cast<size_t>(packed.count) + 1);
  for (const int64_t sequence : packed.sequence_of) ++begins_[static_cast<size_t>(sequence) + 1];
  std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
  std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
  pieces_.resize(in_stream.size());
  for (size_t i = 0; i < in_stream.size(); ++i)
    pieces_[static_cast<size_t>(next[static_cast<size_t>(packed.sequence_of[i])]++)] = in_stream[i];
  figures_ = {.sequences = packed.count, .seq_len = seq_len, .tokens = index.num_tokens, .documents = static_cast<int64_t>(starts.size()) - 1};
  for (size_t i = 0; i + 1 < starts.size(); ++i) figures_.cut += starts[i + 1] - starts[i] > seq_len;
}

std::span<const PackedPiece> Packing::pieces(int64_t sequence) const {
  LOCKSTEP_CHECK(sequence >= 0 && sequence < num_sequences(), "sequence ", sequence, " of ", num_sequences());
  const auto begin = static_cast<size_t>(begins_[static_cast<size_t>(sequence)]), end = static_cast<size_t>(begins_[static_cast<size_t>(sequence) + 1]);
  return std::span(pieces_).subspan(begin, end - begin);
}

}  // namespace lockstep::data
