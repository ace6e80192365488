// What is said where memory is short.
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/plan/ways_out.h"
#include "lockstep/program/render/render_text.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::plan {

using program::Layout;
using program::MemoryBytes;
using program::MemoryCategory;
using program::Row;
using program::bytes_text;
using program::kNumMemoryCategories;
using program::table;

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

}  // namespace

std::string ways_text(const std::vector<WayOut>& ways, const Room& room) {
  if (ways.empty()) return "no change of the layout lowers this: more memory or ranks are needed, or a smaller model\n";
  const bool together = room.kind == Room::Kind::kHost || room.kind == Room::Kind::kDevice;
  std::vector<Row> rows = {{"cheapest ways out", "memory", together ? "needed" : "peak", "step time (predicted)"}};
  for (const WayOut& way : ways)
    rows.push_back({" " + way.change, "-" + bytes_text(way.saved), bytes_text(way.peak),
                    cat(percent(way.slower), room.kind != Room::Kind::kUnbounded && !way.fits ? "   not enough alone" : "")});
  return table(rows, 1, 2);
}

std::string shortage_text(const config::RunConfig& config, const Layout& layout, const Shortage& shortage,
                          const std::optional<MemoryBytes>& measured) {
  const MemoryBytes predicted = predict_memory(layout, program::make_program(layout), shortage.rank);
  const bool several = shortage.room.ranks > 1;
  return indented((several ? cat("rank ", shortage.rank, "\n") : "") + bytes_table(predicted, measured)) +
         indented(ways_text(ways_out(config, layout, shortage), shortage.room));
}

void check_room(const config::RunConfig& config, const Layout& layout, const Room& room) {
  if (room.kind == Room::Kind::kUnbounded) return;
  const Need need = need_of(config, layout, build_program(layout), room);
  if (fits(need, room)) return;
  const std::string own = room.kind == Room::Kind::kLimit ? "" : "; memory.device_limit holds ranks against a size of your own instead";
  throw OutOfMemoryError({.code = "LS4003",
                          .what = cat(shortage_line(layout, need, room), " (nothing was started)",
                                      shortage_text(config, layout, {.rank = need.worst, .room = room}, std::nullopt)),
                          .way_out = "`lockstep show memory` has all of it" + own});
}

}  // namespace lockstep::plan
