#include "lockstep/base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

namespace lockstep {
namespace {

std::string print(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

// Reads a non-negative decimal number at the front of `text` and removes it.
std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (result.ec != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
  return value;
}

void trim(std::string_view& text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
}

}  // namespace

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  const char* format = unit == 0 ? "%.0f " : bytes < 10 ? "%.2f " : "%.1f ";
  return print(format, bytes) + units[unit];
}

std::string format_duration(double seconds) {
  if (seconds < 0.9995) return print("%.0f ms", seconds * 1000);
  if (seconds < 60) return print("%.1f s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const auto two = [](int64_t value) { return (value < 10 ? "0" : "") + std::to_string(value); };
  if (whole < 3600) return std::to_string(whole / 60) + "m" + two(whole % 60) + "s";
  if (whole < 86400) return std::to_string(whole / 3600) + "h" + two(whole % 3600 / 60) + "m";
  return std::to_string(whole / 86400) + "d" + two(whole % 86400 / 3600) + "h";
}

std::string format_count(double count) {
  constexpr std::array<const char*, 6> units = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  while (std::abs(count) >= 999.5 && unit + 1 < units.size()) {
    count /= 1000;
    ++unit;
  }
  if (unit == 0) return print("%.0f", count);
  return print(count < 10 ? "%.2f" : count < 100 ? "%.1f" : "%.0f", count) + units[unit];
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  trim(text);
  const auto value = take_number(text);
  if (!value) return std::nullopt;
  trim(text);
  constexpr std::array<std::pair<std::string_view, double>, 10> units = {
      {{"", 1}, {"B", 1}, {"kB", 1e3}, {"KiB", 1024.}, {"MB", 1e6}, {"MiB", 1048576.}, {"GB", 1e9},
       {"GiB", 1073741824.}, {"TB", 1e12}, {"TiB", 1099511627776.}}};
  for (const auto& [name, factor] : units) {
    if (text == name && *value * factor < 9e18) return static_cast<int64_t>(std::llround(*value * factor));
  }
  return std::nullopt;
}

std::optional<double> parse_duration(std::string_view text) {
  trim(text);
  if (text.empty()) return std::nullopt;
  constexpr std::array<std::pair<std::string_view, double>, 7> units = {
      {{"ms", 1e-3}, {"min", 60}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}, {"hours", 3600}}};
  double total = 0;
  while (!text.empty()) {
    const auto value = take_number(text);
    if (!value) return std::nullopt;
    size_t length = 0;
    while (length < text.size() && (text[length] < '0' || text[length] > '9')) ++length;
    std::string_view unit = text.substr(0, length);
    text.remove_prefix(length);
    trim(unit);
    double factor = 0;
    for (const auto& [name, seconds] : units) {
      if (unit == name) factor = seconds;
    }
    if (factor == 0) return std::nullopt;
    total += *value * factor;
  }
  return total;
}

}  // namespace lockstep
