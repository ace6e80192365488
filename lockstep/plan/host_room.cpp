#include "lockstep/plan/host_room.h"

#include <algorithm>

#include "lockstep/launch/compute_threads.h"
#include "lockstep/launch/host_memory.h"
#include "lockstep/plan/ways_out.h"

namespace lockstep::plan {

using program::Layout;

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
