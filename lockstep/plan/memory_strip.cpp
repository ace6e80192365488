#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/plan/svg.h"
#include "lockstep/program/effects.h"

namespace lockstep::plan {
namespace {

using program::MemoryArray;
using program::MemoryCategory;

int64_t states(const MemoryArray& bytes) {
  const auto of = [&](MemoryCategory category) { return bytes[static_cast<size_t>(category)]; };
  return of(MemoryCategory::kParameters) + of(MemoryCategory::kGradients) + of(MemoryCategory::kOptimizer);
}

struct Column {
  int64_t states = 0, all = 0;
  void take(const MemoryArray& bytes) {
    const int64_t total = program::device_total(bytes);
    if (total < all) return;
    all = total;
    states = plan::states(bytes);
  }
};

}  // namespace

int64_t peak_bytes(const program::MemoryTimeline& timeline) {
  int64_t peak = program::device_total(timeline.before);
  for (const program::MemoryPoint& point : timeline.points) peak = std::max(peak, program::device_total(point.within));
  return peak;
}

std::string MemoryStrip::svg(const std::vector<program::Action>& actions, const std::vector<Span>& spans,
                             const program::MemoryTimeline& timeline) const {
  std::vector<Column> columns(static_cast<size_t>(std::max(1.0, right - left)) + 1);
  const auto column = [&](double time) {
    const double at = std::clamp(time / seconds, 0.0, 1.0) * static_cast<double>(columns.size() - 1);
    return static_cast<size_t>(at);
  };
  double now = 0;
  MemoryArray held = timeline.before;
  const auto until = [&](double time, const MemoryArray& bytes) {
    for (size_t i = column(now); i <= column(std::max(now, time)); ++i) columns[i].take(bytes);
    now = std::max(now, time);
  };
  for (size_t i = 0; i < actions.size(); ++i) {
    if (program::computes(actions[i].kind)) until(spans[i].start, held);
    until(program::computes(actions[i].kind) ? spans[i].end : now, timeline.points.at(i).within);
    held = timeline.points[i].after;
  }
  until(seconds, held);
  const auto area = [&](const char* name, const auto& bytes) {
    std::string path = cat("<path class=\"", name, "\" d=\"M", decimal(left), " ", decimal(height));
    int64_t before = -1;
    for (size_t i = 0; i < columns.size(); ++i) {
      if (bytes(columns[i]) == before) continue;
      const std::string at = decimal(left + static_cast<double>(i));
      before = bytes(columns[i]);
      path += cat("H", at, "V", decimal(height * (1 - static_cast<double>(before) / static_cast<double>(std::max<int64_t>(most, 1))), 2));
    }
    return cat(path, "H", decimal(right), "V", decimal(height), "Z\"/>");
  };
  return area("a", [](const Column& c) { return c.all; }) + area("s", [](const Column& c) { return c.states; });
}

}  // namespace lockstep::plan
