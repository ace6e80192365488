// Finds the added tokens of a tokenizer in a text: leftmost, then longest.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace lockstep::data {

class TokenTrie {
 public:
  void add(std::string_view token, int32_t id);
  bool empty() const { return num_nodes_ == 1; }

  struct Found {
    size_t begin = 0, end = 0;
    int32_t id = 0;
  };
  // The first token at or after `from`. Time is linear in the text times the length of the longest token.
  std::optional<Found> find(std::string_view text, size_t from) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  uint32_t child(uint32_t node, char byte) const;

  std::unordered_map<uint64_t, uint32_t> children_;  // node * 256 + byte -> node; node 0 is the root
  std::unordered_map<uint32_t, int32_t> ids_;        // node -> the token that ends there
  bool starts_[256] = {};
  uint32_t num_nodes_ = 1;
};

}  // namespace lockstep::data
