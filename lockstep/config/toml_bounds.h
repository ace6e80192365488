// A look at the text of a TOML file before a parser that recurses sees it.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace lockstep::config {

// Far beyond any configuration, and far below what a stack holds.
inline constexpr int kMostKeyParts = 32;   // "a.b.c" has three
inline constexpr int kMostNesting = 32;    // arrays and inline tables in each other
inline constexpr size_t kMostTomlBytes = size_t{16} << 20;

struct TooDeep {
  size_t line = 0;    // from 1
  size_t column = 0;  // from 1, in bytes
  const char* what = "";  // "a key of more than 32 parts"
};

// The first place that goes beyond the bounds; nothing where there is none. Text that is not TOML may pass: the parser
// stops at the first fault, and up to there both read the same.
std::optional<TooDeep> too_deep(std::string_view toml);

}  // namespace lockstep::config
