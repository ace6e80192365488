#include "lockstep/train/exposed.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::train {

std::string percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * share);
  return text.data();
}

Values exposed_shares(const engine::StepResult& result, double seconds) {
  Values shares;
  for (const auto& [what, waited] : result.exposed_by) {
    std::string name = "perf/exposed_comm/" + what;
    std::replace(name.begin(), name.end(), ' ', '_');
    shares.emplace_back(std::move(name), waited / seconds);
  }
  return shares;
}

void ExposedTotals::add(const engine::StepResult& result, double seconds) {
  for (const auto& [what, waited] : result.exposed_by) waited_[what] += waited;
  copies_ += result.copies;
  disk_ += result.disk;
  seconds_ += seconds;
}

std::string ExposedTotals::copies_text() const {
  std::vector<std::string> parts;
  const auto add = [&](const engine::CopyTotals& totals, const char* between) {
    if (totals.copies == 0) return;
    std::array<char, 32> seconds{};
    std::snprintf(seconds.data(), seconds.size(), "%.1f s", totals.seconds);
    parts.push_back(cat(format_bytes(static_cast<double>(totals.bytes)), between, " in ", seconds.data(), ", ",
                        percent(totals.hidden()), " of it hidden"));
  };
  add(copies_, " between host and device");
  add(disk_, " to and from disk");
  return parts.empty() ? "" : cat("copied ", join(parts, "; "));
}

std::string ExposedTotals::text() const {
  std::vector<std::pair<double, std::string>> largest_first;
  double total = 0;
  for (const auto& [what, waited] : waited_) {
    total += waited;
    largest_first.emplace_back(-waited, what);
  }
  if (total == 0) return "";
  std::sort(largest_first.begin(), largest_first.end());
  std::vector<std::string> parts;
  for (const auto& [waited, what] : largest_first) parts.push_back(cat(what, " ", percent(-waited / seconds_)));
  std::array<char, 32> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%.1f s", seconds_);
  return cat("waited for communication ", percent(total / seconds_), " of ", seconds.data(), ": ", join(parts, ", "));
}

}  // namespace lockstep::train
