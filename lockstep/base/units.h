// Bytes, durations and rates as text, both ways.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;

// "512 B", "25.0 MiB", "1.50 GiB".
std::string format_bytes(double bytes);
// "90 ms", "12.3 s", "4m10s", "1h39m".
std::string format_duration(double seconds);
// "987", "412k", "1.24M", "3.1G": three digits.
std::string format_count(double count);

// "25MiB", "80GiB", "4096" (bytes); nothing where it cannot be read.
std::optional<int64_t> parse_bytes(std::string_view text);
// "90s", "30min", "3h50m", "2d" in seconds; a unit is required.
std::optional<double> parse_duration(std::string_view text);

}  // namespace lockstep
