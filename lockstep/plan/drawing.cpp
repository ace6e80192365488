#include "lockstep/plan/drawing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "lockstep/base/text.h"

namespace lockstep::plan {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '"')
      result += "&quot;";
    else
      result += c;
  }
  return result;
}

std::string decimal(double value, int digits) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  std::string text = buffer.data();
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string percent_text(double share) { return decimal(100 * share, 1) + " %"; }

std::string time_text(double seconds, bool in_units, std::optional<double> scale) {
  if (in_units) return cat(decimal(seconds, 2), seconds == 1 ? " unit" : " units");
  const double size = std::abs(scale.value_or(seconds));
  if (size >= 1) return decimal(seconds, 3) + " s";
  if (size >= 1e-3) return decimal(seconds * 1e3, size >= 0.1 ? 1 : 2) + " ms";
  return decimal(seconds * 1e6, 1) + " us";
}

double round_step(double range, int parts) {
  if (!(range > 0)) return 1;
  const double least = range / parts;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

int64_t peak_bytes(const program::MemoryTimeline& timeline) {
  int64_t peak = program::device_total(timeline.before);
  for (const program::MemoryPoint& point : timeline.points) peak = std::max(peak, program::device_total(point.within));
  return peak;
}

}  // namespace lockstep::plan
