// Finds the added tokens of a tokenizer in a text: leftmost, then longest, without overlap.
// Aho, Corasick: Efficient String Matching: An Aid to Bibliographic Search (CACM 1975).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/data/pair_table.h"

namespace lockstep::data {

class TokenTrie {
 public:
  struct Token {
    uint32_t size = 0;  // bytes
    uint32_t value = 0;
  };
  struct Found {
    size_t begin = 0, end = 0;
    uint32_t value = 0;
  };

  // Of two equal tokens the first counts. Call build() behind the last.
  void add(std::string_view token, uint32_t value);
  void build();
  bool empty() const { return nodes_.size() == 1; }

  // The tokens of `text` in its order, into `found`. Time and memory are linear in the text, whatever the tokens are;
  // the result is the number of steps made.
  uint64_t find_all(std::string_view text, std::vector<Found>& found) const;

 private:
  // The automaton reads tokens and text backwards: having read down to a place, it knows the longest token that starts
  // there, and that is what the leftmost, longest match needs.
  struct Node {
    uint32_t fail = 0;     // the node of the longest proper suffix of what was read
    Token longest{};       // the longest token that ends (backwards) here; size 0 = none
  };
  uint32_t child(uint32_t node, char byte) const;  // 0 = none

  std::vector<Node> nodes_ = std::vector<Node>(1);
  PairTable<uint32_t> children_;  // (node, byte) -> node
  std::array<uint32_t, 256> of_root_{};
};

}  // namespace lockstep::data
