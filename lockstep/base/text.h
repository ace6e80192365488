// Small helpers for building and comparing text.
#pragma once

#include <charconv>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace lockstep {

// The arguments one after the other, as operator<< prints them: cat("rank ", 3) == "rank 3".
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return std::move(stream).str();
}

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);

// The candidate with the smallest edit distance to `word`, or "" if none is near (more than a third of it differs).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// The shortest decimal text that reads back as the same number ("0.1", "3", "1e-08").
std::string number_text(double value);
std::string number_text(float value);

// The number that the whole text is; nothing where it is none, or too large.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number) : std::nullopt;
}

// `text` padded with spaces to `width` columns (UTF-8 code points), left- or right-aligned.
std::string pad_left(std::string_view text, size_t width);
std::string pad_right(std::string_view text, size_t width);

}  // namespace lockstep
