#include "lockstep/plan/room.h"

#include <algorithm>
#include <map>

#include "lockstep/arch/params.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/compute_threads.h"
#include "lockstep/launch/host_memory.h"
#include "lockstep/plan/ways_out.h"
#include "lockstep/program/passes/build.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {

using program::Layout;
using program::MemoryBytes;
using program::MemoryCategory;
using program::RankMemory;
using program::bytes_text;

namespace {

int64_t saved_bytes(const Layout& layout, int rank) {
  const std::vector<arch::ParamSpec> table = layout.param_table(rank);
  return arch::update_bytes(table, layout.flat_layout(table));
}

// Replicas of a parameter share out the writing of it: bytes of a rank, by its coordinate on pp, in `known`.
int64_t saved_copy(const Layout& layout, int rank, std::map<int, int64_t>& known) {
  const auto [bytes, fresh] = known.try_emplace(layout.pipeline_rank(rank), 0);
  if (fresh) bytes->second = saved_bytes(layout, rank) * layout.shards() / layout.mesh.degree(layout.tokens());
  return bytes->second;
}

int64_t twin_bytes(const Layout& layout) {
  const Layout twin = reference_layout(layout);
  return predict_memory(twin, make_program(twin), 0).peak;
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

}  // namespace

Room limit_of(const config::RunConfig& config) {
  if (config.memory.device_limit.count == 0) return {};
  return {.kind = Room::Kind::kLimit, .bytes = config.memory.device_limit.count, .source = "memory.device_limit"};
}

Need need_of(const config::RunConfig& config, const Layout& layout, const program::Program& program, const Room& room) {
  RankMemory bytes(layout, program);
  return need_of(config, layout, bytes, room);
}

Need need_of(const config::RunConfig& config, const Layout& layout, RankMemory& bytes, const Room& room) {
  const bool all = room.kind == Room::Kind::kLimit || room.kind == Room::Kind::kUnbounded;
  const bool on_cpu = config.train.device == config::Device::kCpu;
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
    if (room.kind == Room::Kind::kDevice || on_cpu) need.device += ranks * of_rank.peak;
    if (room.kind == Room::Kind::kHost) need.host += ranks * of_rank[MemoryCategory::kHost];
    if (saves) need.saved += ranks * saved_copy(layout, rank, copies);
  }
  const bool has_twin = room.twin && begin == 0 && !all && (on_cpu || room.kind == Room::Kind::kDevice);
  if (has_twin) need.twin = twin_bytes(layout);
  need.total = all ? need.peak : need.device + need.host + need.saved + need.twin;
  return need;
}

bool fits(const Need& need, const Room& room) { return room.kind == Room::Kind::kUnbounded || need.total <= room.bytes; }

std::string shortage_line(const Layout& layout, const Need& need, const Room& room) {
  const std::string rank = cat("rank ", need.worst, " (", layout.mesh.describe(need.worst), ")");
  if (room.kind == Room::Kind::kLimit)
    return cat(rank, " would need ", bytes_text(need.total), ", but memory.device_limit = ", bytes_text(room.bytes));
  const char* place = room.kind == Room::Kind::kHost ? "this host" : "a GPU";
  const std::string who = room.ranks == 1 ? cat(rank, " would need ") : cat(room.ranks, " ranks of ", place, " would together need ");
  return cat(who, bytes_text(need.total), parts_text(need), ", but ", bytes_text(room.bytes), " are left on ", place, " (",
             room.source, ")");
}

std::vector<Room> rooms_here(const config::RunConfig& config, const HostRanks& ranks) {
  std::vector<Room> rooms;
  const Room limit = limit_of(config);
  const bool limited = limit.kind == Room::Kind::kLimit;
  if (limited) rooms.push_back(limit);
  // On the CPU the limit is of the same memory, and whoever sets it has said what there is.
  if (limited && config.train.device == config::Device::kCpu) return rooms;
  const auto memory = launch::host_memory();
  if (!memory) return rooms;
  rooms.push_back({.kind = Room::Kind::kHost,
                   .bytes = memory->available,
                   .source = memory->source,
                   .first_rank = ranks.first.rank,
                   .ranks = std::max(1, ranks.first.local_size),
                   .fewer_ranks = ranks.fewer_ranks});
  return rooms;
}

void refuse_what_does_not_fit(const config::RunConfig& config, const Layout& layout, const HostRanks& ranks) {
  Layout here = layout;
  here.threads = launch::compute_threads(config.train.threads, ranks.first);
  for (Room& room : rooms_here(config, ranks)) {
    room.twin = ranks.twin;
    check_room(config, here, room);
  }
}

}  // namespace lockstep::plan
