#include "apps/lockstep/rooms.h"

#include "apps/lockstep/ranks.h"

namespace lockstep::apps {
namespace {

plan::HostRanks here(const CommandLine& command_line, int ranks) {
  return {.first = first_rank_here(command_line, ranks), .fewer_ranks = command_line.identity.alone()};
}

}  // namespace

std::vector<plan::Room> rooms_here(const CommandLine& command_line, const config::RunConfig& config, int ranks) {
  return plan::rooms_here(config, here(command_line, ranks));
}

void refuse_what_does_not_fit(const CommandLine& command_line, const config::RunConfig& config,
                              const program::Layout& layout, bool twin) {
  plan::HostRanks ranks = here(command_line, layout.mesh.world_size());
  ranks.twin = twin;
  plan::refuse_what_does_not_fit(config, layout, ranks);
}

}  // namespace lockstep::apps
