#include "lockstep/plan/room.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/host_memory.h"
#include "lockstep/program/render/render_text.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::plan {

using program::Layout;
using program::MemoryBytes;
using program::MemoryCategory;
using program::RankMemory;
using program::Row;
using program::bytes_text;
using program::kNumMemoryCategories;
using program::table;

namespace {

// The copy of its states from which a rank saves, by its coordinate on pp in `known`: replicas of a parameter share out the writing.
int64_t saved_copy(const Layout& layout, int rank, std::map<int, int64_t>& known) {
  const auto [copy, fresh] = known.try_emplace(layout.pipeline_rank(rank), 0);
  if (!fresh) return copy->second;
  const std::vector<arch::ParamSpec> specs = layout.param_table(rank);
  const arch::FlatLayout flat = layout.flat_layout(specs);
  int64_t experts = 0;
  for (const arch::FlatUnit& unit : flat.units)
    if (unit.group == arch::ParameterGroup::kExperts) experts += arch::update_bytes(specs, unit);
  copy->second = (arch::update_bytes(specs, flat) - experts) * layout.shards() / layout.mesh.degree(layout.tokens());
  if (experts > 0) {
    constexpr arch::ParameterGroup kExperts = arch::ParameterGroup::kExperts;
    copy->second += experts * layout.shards(kExperts) / layout.mesh.degree(layout.domain(kExperts).sum);
  }
  return copy->second;
}

std::string parts_text(const Need& need) {
  std::vector<std::string> parts;
  const auto part = [&](const char* name, int64_t bytes) {
    if (bytes > 0) parts.push_back(cat(name, " ", bytes_text(bytes)));
  };
  part("steps", need.device);
  part("what is offloaded", need.host);
  part("copies of states to save", need.saved);
  part("the one-rank twin", need.twin);
  return parts.size() > 1 ? cat(" (", join(parts, ", "), ")") : "";
}

std::string indented(const std::string& text) {
  std::string lines;
  for (const std::string& line : split(text, '\n'))
    if (!line.empty()) lines += cat("\n  ", line);
  return lines;
}

std::string bytes_table(const MemoryBytes& predicted, const std::optional<MemoryBytes>& measured) {
  std::vector<Row> rows = {{"", "predicted"}};
  if (measured) rows[0].emplace_back("measured");
  const auto row = [&](std::string_view name, const auto& of) {
    rows.push_back({std::string(name), bytes_text(of(predicted))});
    if (measured) rows.back().push_back(bytes_text(of(*measured)));
  };
  const auto category = [&](MemoryCategory one) { row(category_name(one), [&](const MemoryBytes& bytes) { return bytes[one]; }); };
  for (size_t i = 0; i < kNumMemoryCategories; ++i)
    if (static_cast<MemoryCategory>(i) != MemoryCategory::kHost) category(static_cast<MemoryCategory>(i));
  row("peak", [](const MemoryBytes& bytes) { return bytes.peak; });
  if (predicted[MemoryCategory::kHost] > 0) category(MemoryCategory::kHost);
  return table(rows, 1, 2);
}

}  // namespace

Room limit_of(const config::RunConfig& config) {
  if (config.memory.device_limit.count == 0) return {};
  return {.kind = Room::Kind::kLimit, .bytes = config.memory.device_limit.count, .source = "memory.device_limit"};
}

Need need_of(const config::RunConfig& config, const Layout& layout, RankMemory& bytes, const Room& room) {
  const bool all = room.of_each_rank();
  const bool has_steps = room.kind == Room::Kind::kDevice || config.train.device == config::Device::kCpu;
  const int world_size = layout.mesh.world_size();
  const int begin = all ? 0 : std::min(room.first_rank, world_size - 1);
  const int end = all ? world_size : std::min(begin + room.ranks, world_size);
  const bool saves = room.kind == Room::Kind::kHost && !room.twin && config.checkpoint.asynchronous;
  std::map<int, int64_t> copies;
  Need need{.worst = begin};
  for (const auto& [rank, ranks] : bytes.among(begin, end)) {
    const MemoryBytes& of_rank = bytes.of(rank);
    if (of_rank.peak > need.peak) need.worst = rank, need.peak = of_rank.peak;
    if (all) continue;
    if (has_steps) need.device += ranks * of_rank.peak;
    if (room.kind == Room::Kind::kHost) need.host += ranks * of_rank[MemoryCategory::kHost];
    if (saves) need.saved += ranks * saved_copy(layout, rank, copies);
  }
  if (room.twin && begin == 0 && !all && has_steps) {
    const Layout twin = reference_layout(layout);
    need.twin = predict_memory(twin, make_program(twin), 0).peak;
  }
  need.total = all ? need.peak : need.device + need.host + need.saved + need.twin;
  return need;
}

std::string shortage_line(const Layout& layout, const Need& need, const Room& room) {
  const std::string rank = cat("rank ", need.worst, " (", layout.mesh.describe(need.worst), ")");
  if (room.kind == Room::Kind::kLimit)
    return cat(rank, " would need ", bytes_text(need.total), ", but memory.device_limit = ", bytes_text(room.bytes));
  const char* place = room.kind == Room::Kind::kHost ? "this host" : "a GPU";
  const std::string who = room.ranks == 1 ? cat(rank, " would need ") : cat(room.ranks, " ranks of ", place, " would together need ");
  return cat(who, bytes_text(need.total), parts_text(need), ", but ", bytes_text(room.bytes), " are left on ", place, " (",
             room.source, ")");
}

std::string ways_text(const std::vector<WayOut>& ways, const Room& room) {
  if (ways.empty()) return "no change of the layout lowers this: more memory or ranks are needed, or a smaller model\n";
  std::vector<Row> rows = {{"cheapest ways out", "memory", room.of_each_rank() ? "peak" : "needed", "step time (predicted)"}};
  for (const WayOut& way : ways) {
    const auto percent = std::llround(100 * way.slower);
    rows.push_back({" " + way.change, "-" + bytes_text(way.saved), bytes_text(way.peak),
                    cat(percent < 0 ? "" : "+", percent, " %", room.kind != Room::Kind::kUnbounded && !way.fits ? "   not enough alone" : "",
                        way.limits_experts ? "   of a step without further rounds" : "")});
  }
  return table(rows, 1, 2);
}

std::string shortage_text(const config::RunConfig& config, const Layout& layout, const Shortage& shortage,
                          const std::optional<MemoryBytes>& measured) {
  const MemoryBytes predicted = predict_memory(layout, program::make_program(layout), shortage.rank);
  return indented((shortage.room.ranks > 1 ? cat("rank ", shortage.rank, "\n") : "") + bytes_table(predicted, measured)) +
         indented(ways_text(ways_out(config, layout, shortage), shortage.room));
}

void check_room(const config::RunConfig& config, const Layout& layout, const Room& room) {
  if (room.kind == Room::Kind::kUnbounded) return;
  const program::Program program = build_program(layout);
  RankMemory bytes(layout, program);
  const Need need = need_of(config, layout, bytes, room);
  if (fits(need, room)) return;
  const std::string own = room.kind == Room::Kind::kLimit ? "" : "; memory.device_limit holds ranks against a size of your own instead";
  throw OutOfMemoryError({.code = "LS4003",
                          .what = cat(shortage_line(layout, need, room), " (nothing was started)",
                                      shortage_text(config, layout, {.rank = need.worst, .room = room}, std::nullopt)),
                          .way_out = "`lockstep show memory` has all of it" + own});
}

std::vector<Room> rooms_here(const config::RunConfig& config, Room here) {
  std::vector<Room> rooms;
  if (const Room limit = limit_of(config); limit.kind == Room::Kind::kLimit) rooms.push_back(limit);
  // On the CPU the limit is of the same memory, and whoever sets it has said what there is.
  if (!rooms.empty() && config.train.device == config::Device::kCpu) return rooms;
  if (const auto memory = launch::host_memory()) {
    here.kind = Room::Kind::kHost;
    here.bytes = memory->available;
    here.source = memory->source;
    rooms.push_back(std::move(here));
  }
  return rooms;
}

void refuse_what_does_not_fit(const config::RunConfig& config, const Layout& layout, const Room& here) {
  for (const Room& room : rooms_here(config, here)) check_room(config, layout, room);
}

}  // namespace lockstep::plan
