// What is said where memory is short.
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/program/render_text.h"
#include "lockstep/program/ways_out.h"

namespace lockstep::program {
namespace {

std::string indented(const std::string& text) {
  std::string lines;
  for (const std::string& line : split(text, '\n'))
    if (!line.empty()) lines += cat("\n  ", line);
  return lines;
}

std::string percent(double share) {
  const auto whole = std::llround(100 * share);
  return cat(whole < 0 ? "" : "+", whole, " %");
}

std::string bytes_table(const MemoryBytes& predicted, const std::optional<MemoryBytes>& measured) {
  std::vector<Row> rows = {{"", "predicted"}};
  if (measured) rows[0].emplace_back("measured");
  const auto row = [&](std::string_view name, int64_t expected, int64_t actual) {
    rows.push_back({std::string(name), bytes_text(expected)});
    if (measured) rows.back().push_back(bytes_text(actual));
  };
  for (size_t i = 0; i < kNumMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (category != MemoryCategory::kHost)
      row(category_name(category), predicted[category], measured ? (*measured)[category] : 0);
  }
  row("peak", predicted.peak, measured ? measured->peak : 0);
  if (predicted[MemoryCategory::kHost] > 0)
    row("host", predicted[MemoryCategory::kHost], measured ? (*measured)[MemoryCategory::kHost] : 0);
  return table(rows, 1, 2);
}

std::string ways_table(const std::vector<WayOut>& ways, int64_t limit) {
  if (ways.empty()) return "no single change lowers the peak of these ranks: use more of them, or a smaller model\n";
  std::vector<Row> rows = {{"cheapest ways out", "memory", "peak", "step time (predicted)"}};
  for (const WayOut& way : ways)
    rows.push_back({" " + way.change, "-" + bytes_text(way.saved), bytes_text(way.peak),
                    cat(percent(way.slower), limit > 0 && !way.fits ? "   not enough alone" : "")});
  return table(rows, 1, 2);
}

}  // namespace

std::string shortage_text(const config::RunConfig& config, const Layout& layout, int rank,
                          const std::optional<MemoryBytes>& measured) {
  const MemoryBytes predicted = predict_memory(layout, build_program(layout), rank);
  return indented(bytes_table(predicted, measured)) +
         indented(ways_table(ways_out(config, layout, rank), layout.device_limit));
}

void check_device_limit(const config::RunConfig& config, const Layout& layout) {
  if (layout.device_limit == 0) return;
  const Program program = build_program(layout);
  int worst = 0;
  int64_t peak = 0;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
    const int64_t needed = predict_memory(layout, program, rank).peak;
    if (needed > peak) worst = rank, peak = needed;
  }
  if (peak <= layout.device_limit) return;
  throw OutOfMemoryError({.code = "LS4003",
                          .what = cat("rank ", worst, " (", layout.mesh.describe(worst), ") would need ", bytes_text(peak),
                                      ", but memory.device_limit = ", bytes_text(layout.device_limit),
                                      " (nothing was started)", shortage_text(config, layout, worst, std::nullopt)),
                          .way_out = "`lockstep show memory` has all of it"});
}

}  // namespace lockstep::program
