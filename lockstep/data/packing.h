// Documents packed into sequences: whole ones, as many as fit, best fit in decreasing length (Ding et al., Fewer Truncations Improve
// Language Modeling, 2024, section 3). A function of the lengths alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/token_file.h"

namespace lockstep::data {

// Where each document that has tokens begins in the stream, ascending, and the number of tokens at the end.
std::vector<int64_t> document_starts(const TokenIndex& index);

// Tokens [first, first + length) of the stream, of one document: all of it, or a part of seq_len tokens, or what such parts leave.
struct PackedPiece {
  int64_t first = 0;
  int32_t length = 0;
  bool continues = false;  // the document goes on behind it
};

struct PackingFigures {
  int64_t sequences = 0, seq_len = 0;
  int64_t tokens = 0;     // of documents, in the sequences
  int64_t documents = 0;  // that have tokens
  int64_t cut = 0;        // of them, longer than a sequence

  int64_t fill() const { return sequences * seq_len - tokens; }
  double fill_share() const { return sequences == 0 ? 0 : static_cast<double>(fill()) / static_cast<double>(sequences * seq_len); }
};
// "2,048 documents, 3 of them cut, in 512 sequences of 1024 tokens, 1.25 % of them fill"
std::string packing_text(const PackingFigures& figures);

// Sequences in the order of their first pieces in the stream, so their order is that of the file as far as packing leaves it. Every token
// is in one of them. Memory: 16 bytes a piece and 8 a sequence; three times that while it is made.
class Packing {
 public:
  Packing(const TokenIndex& index, int64_t seq_len);

  int64_t num_sequences() const { return static_cast<int64_t>(begins_.size()) - 1; }
  // Ascending in the stream; at most seq_len tokens together.
  std::span<const PackedPiece> pieces(int64_t sequence) const;
  const PackingFigures& figures() const { return figures_; }

 private:
  std::vector<PackedPiece> pieces_{};  // by sequence
  std::vector<int64_t> begins_{};      // of each sequence in pieces_, and their number
  PackingFigures figures_{};
};

}  // namespace lockstep::data
