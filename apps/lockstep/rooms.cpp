#include "apps/lockstep/rooms.h"

#include <algorithm>

#include "apps/lockstep/ranks.h"
#include "lockstep/launch/compute_threads.h"
#include "lockstep/launch/host_memory.h"
#include "lockstep/program/ways_out.h"

namespace lockstep::apps {

std::vector<program::Room> rooms_here(const CommandLine& command_line, const config::RunConfig& config, int ranks) {
  std::vector<program::Room> rooms;
  const program::Room limit = program::limit_of(config);
  const bool limited = limit.kind == program::Room::Kind::kLimit;
  if (limited) rooms.push_back(limit);
  // On the CPU the limit is of the same memory, and whoever sets it has said what there is.
  if (limited && config.train.device == config::Device::kCpu) return rooms;
  const auto memory = launch::host_memory();
  if (!memory) return rooms;
  const launch::Identity first = first_rank_here(command_line, ranks);
  rooms.push_back({.kind = program::Room::Kind::kHost,
                   .bytes = memory->available,
                   .source = memory->source,
                   .first_rank = first.rank,
                   .ranks = std::max(1, first.local_size),
                   .fewer_ranks = command_line.identity.alone()});
  return rooms;
}

void refuse_what_does_not_fit(const CommandLine& command_line, const config::RunConfig& config,
                              const program::Layout& layout, bool twin) {
  const int ranks = layout.mesh.world_size();
  program::Layout here = layout;
  here.threads = launch::compute_threads(config.train.threads, first_rank_here(command_line, ranks));
  for (program::Room& room : rooms_here(command_line, config, ranks)) {
    room.twin = twin;
    program::check_room(config, here, room);
  }
}

}  // namespace lockstep::apps
