// Byte-pair encoding of one piece of text: starting from its bytes (or, in vocabularies made by sentencepiece, its code
// points), the adjacent pair whose merge was learned first is joined, until none is left.
// Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with Subword Units (ACL 2016); over bytes as in
// Radford et al.: Language Models are Unsupervised Multitask Learners (2019).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/data/pair_table.h"

namespace lockstep::data {

// Ids of pieces seen before, since most words of a text repeat. Forgets everything when full.
class PieceCache {
 public:
  PieceCache();
  // Appends the ids of the piece to `out` if it is known.
  bool find(std::string_view piece, uint64_t hash, std::vector<int32_t>& out) const;
  void insert(std::string_view piece, uint64_t hash, const int32_t* ids, size_t count);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t text_at = 0, id_at = 0;
    uint16_t text_size = 0, id_count = 0;  // text_size 0 = empty slot
  };
  size_t index_of(std::string_view piece, uint64_t hash) const;
  std::vector<Slot> slots_;
  std::string text_;
  std::vector<int32_t> ids_;
  size_t used_ = 0;
};

// What one thread needs while it encodes.
struct BpeScratch {
  struct Symbol {
    int32_t id, previous, next;  // indices, -1 = none; id -1 = joined to its left neighbour
  };
  struct Candidate {
    uint64_t rank_and_position;  // rank in the upper half: the first learned, then the leftmost
    int32_t merged_id;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  PieceCache cache;
  uint64_t steps = 0;  // symbols and pairs looked at
};

class BpeModel {
 public:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = 0;
  };
  enum class Alphabet { kBytes, kCodePoints };

  explicit BpeModel(Alphabet alphabet = Alphabet::kBytes);
  void set_byte(uint8_t byte, int32_t id) { byte_ids_[byte] = id; }
  void set_code_point(char32_t point, int32_t id) { code_point_ids_(static_cast<int32_t>(point), 0) = id; }
  // The token of a byte of a code point that has no token (`byte_fallback`); used where each byte of it has one.
  void set_fallback(uint8_t byte, int32_t id) { fallback_ids_[byte] = id; }
  // The token of what has none; `fuse` = one for a run of it.
  void set_unknown(int32_t id, bool fuse);
  void set_merge(int32_t left, int32_t right, Merge merge) { merges_(left, right) = merge; }
  // A piece that is a token itself is taken whole, whatever the merges say (`ignore_merges`).
  void set_whole_piece(std::string piece, int32_t id) { whole_.emplace(std::move(piece), id); }

  // Appends the ids of the piece. O(n log n) for n bytes. DataError LS1212 where a byte or code point has no token.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const;
  };
  void merge(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void read_symbols(std::string_view piece, BpeScratch& scratch) const;
  bool read_fallback(std::string_view symbol, BpeScratch& scratch) const;
  void push_candidate(BpeScratch& scratch, int32_t position) const;

  Alphabet alphabet_;
  std::array<int32_t, 256> byte_ids_, fallback_ids_;
  PairTable<int32_t> code_point_ids_;  // (code point, 0)
  int32_t unknown_id_ = -1;
  bool fuse_unknown_ = false;
  PairTable<Merge> merges_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> whole_;
};

}  // namespace lockstep::data
