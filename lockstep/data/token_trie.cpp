#include "lockstep/data/token_trie.h"

#include <algorithm>
#include <utility>

namespace lockstep::data {

uint32_t TokenTrie::child(uint32_t node, char byte) const {
  if (node == 0) return of_root_[static_cast<uint8_t>(byte)];
  const uint32_t* found = children_.find(static_cast<int32_t>(node), static_cast<uint8_t>(byte));
  return found == nullptr ? 0 : *found;
}

void TokenTrie::add(std::string_view token, uint32_t value) {
  if (token.empty()) return;
  uint32_t node = 0;
  for (size_t i = token.size(); i-- > 0;) {
    uint32_t next = child(node, token[i]);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      children_(static_cast<int32_t>(node), static_cast<uint8_t>(token[i])) = next;
      if (node == 0) of_root_[static_cast<uint8_t>(token[i])] = next;
    }
    node = next;
  }
  Token& own = nodes_[node].longest;
  if (own.size == 0) own = {.size = static_cast<uint32_t>(token.size()), .value = value};
}

void TokenTrie::build() {
  std::vector<std::vector<std::pair<char, uint32_t>>> edges(nodes_.size());
  children_.for_each([&](int32_t node, int32_t byte, uint32_t next) {
    edges[static_cast<size_t>(node)].emplace_back(static_cast<char>(byte), next);
  });
  std::vector<uint32_t> queue = {0};  // by depth, so that what a node falls back to is known
  for (size_t at = 0; at < queue.size(); ++at) {
    const uint32_t node = queue[at];
    for (const auto& [byte, next] : edges[node]) {
      uint32_t fail = nodes_[node].fail;
      while (fail != 0 && child(fail, byte) == 0) fail = nodes_[fail].fail;
      if (node != 0) nodes_[next].fail = child(fail, byte);
      if (nodes_[next].longest.size == 0) nodes_[next].longest = nodes_[nodes_[next].fail].longest;
      queue.push_back(next);
    }
  }
}

uint64_t TokenTrie::find_all(std::string_view text, std::vector<Found>& found) const {
  found.clear();
  uint64_t steps = 0;
  uint32_t node = 0;
  for (size_t at = text.size(); at-- > 0; ++steps) {
    while (node != 0 && child(node, text[at]) == 0) {
      node = nodes_[node].fail;
      ++steps;
    }
    node = child(node, text[at]);
    const Token& token = nodes_[node].longest;
    if (token.size > 0) found.push_back({.begin = at, .end = at + token.size, .value = token.value});
  }
  std::reverse(found.begin(), found.end());
  size_t end = 0;
  std::erase_if(found, [&end](const Found& match) {
    if (match.begin < end) return true;
    end = match.end;
    return false;
  });
  return steps;
}

}  // namespace lockstep::data
