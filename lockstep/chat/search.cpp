#include "lockstep/chat/search.h"

#include <string.h>

#include <algorithm>

namespace lockstep::chat {

std::vector<uint32_t> budgeted_points(Budget& budget, std::string_view text) {
  budget.spend(1 + static_cast<int64_t>(text.size()) / 2);
  return code_points(text);
}

size_t find_text(Budget& budget, std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  // memmem is linear for long parts, and short ones are compared at most so many times.
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  const size_t at = found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : text.size();
  budget.spend(1 + static_cast<int64_t>(part.size() / 16 + (at - from) / 4));
  return found ? at : std::string_view::npos;
}

std::vector<std::string_view> split_text(Budget& budget, std::string_view text, std::string_view separator, int64_t most,
                                         bool from_right) {
  std::vector<std::string_view> parts;
  const auto add = [&](std::string_view part) {
    parts.push_back(part);
    if (parts.size() % 1024 == 0) budget.room(static_cast<int64_t>(2 * parts.size() * sizeof(part)));
  };
  const auto cuts_left = [&] { return most < 0 || static_cast<int64_t>(parts.size()) < most; };
  if (from_right) {
    // Backwards it is the same search.
    const std::string back(text.rbegin(), text.rend()), mark(separator.rbegin(), separator.rend());
    for (std::string_view part : split_text(budget, back, mark, most, false)) {
      const auto begin = static_cast<size_t>(part.data() - back.data());
      add(text.substr(text.size() - begin - part.size(), part.size()));
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  while (cuts_left()) {
    const size_t found = find_text(budget, text, separator, begin);
    if (found == std::string_view::npos) break;
    add(text.substr(begin, found - begin));
    begin = found + separator.size();
  }
  add(text.substr(begin));
  return parts;
}

}  // namespace lockstep::chat
