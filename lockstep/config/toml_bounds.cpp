#include "lockstep/config/toml_bounds.h"

#include <algorithm>

namespace lockstep::config {
namespace {

// Behind the string that begins at `at`. One of a single line that does not end ends with its line.
size_t behind_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const bool escapes = quote == '"';
  const std::string_view three = quote == '"' ? "\"\"\"" : "'''";
  const bool several_lines = text.substr(at, 3) == three;
  at += several_lines ? 3 : 1;
  while (at < text.size()) {
    if (escapes && text[at] == '\\') {
      at += 2;
    } else if (several_lines && text.substr(at, 3) == three) {
      at += 3;
      for (int more = 0; more < 2 && at < text.size() && text[at] == quote; ++more) ++at;  // of its own end
      return at;
    } else if (!several_lines && (text[at] == quote || text[at] == '\n')) {
      return text[at] == quote ? at + 1 : at;
    } else {
      ++at;
    }
  }
  return text.size();
}

TooDeep found_at(std::string_view text, size_t at, const char* what) {
  const std::string_view before = text.substr(0, at);
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 = 0
  return {.line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1,
          .column = at - line_start + 1,
          .what = what};
}

}  // namespace

std::optional<TooDeep> too_deep(std::string_view text) {
  int parts = 1, open = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = behind_string(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '[' || c == '{') ++open;
    if (c == ']' || c == '}') --open;
    parts = c == '.' ? parts + 1 : c == '\n' || c == '=' || c == ',' || c == '[' || c == '{' ? 1 : parts;
    if (parts > kMostKeyParts) return found_at(text, at, "a key of more than 32 parts");
    if (open > kMostNesting) return found_at(text, at, "arrays and tables more than 32 deep in each other");
    ++at;
  }
  return std::nullopt;
}

}  // namespace lockstep::config
