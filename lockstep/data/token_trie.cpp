#include "lockstep/data/token_trie.h"

namespace lockstep::data {
namespace {

uint64_t key_of(uint32_t node, char byte) {
  return uint64_t{node} * 256 + static_cast<uint8_t>(byte);
}

}  // namespace

uint32_t TokenTrie::child(uint32_t node, char byte) const {
  const auto found = children_.find(key_of(node, byte));
  return found == children_.end() ? kNone : found->second;
}

void TokenTrie::add(std::string_view token, int32_t id) {
  if (token.empty()) return;
  starts_[static_cast<uint8_t>(token.front())] = true;
  uint32_t node = 0;
  for (const char byte : token) {
    const auto [place, is_new] = children_.try_emplace(key_of(node, byte), num_nodes_);
    if (is_new) ++num_nodes_;
    node = place->second;
  }
  ids_[node] = id;
}

std::optional<TokenTrie::Found> TokenTrie::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<Found> longest;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      node = child(node, text[at]);
      if (node == kNone) break;
      const auto id = ids_.find(node);
      if (id != ids_.end()) longest = Found{.begin = begin, .end = at + 1, .id = id->second};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace lockstep::data
