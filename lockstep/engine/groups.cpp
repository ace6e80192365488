#include "lockstep/engine/groups.h"

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::engine {
namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Groups::Groups(comm::World& world, const mesh::Mesh& mesh) : rank_(world.rank()) {
  if (world.size() != mesh.world_size())
    throw ConfigError({.code = "LS1102",
                       .what = cat("the layout needs ", mesh.world_size(), " ranks, but ", world.size(), " were started"),
                       .way_out = cat("start with -n ", mesh.world_size())});
  data_ = world.communicator(mesh.group(rank_, mesh::kDataAxes), "dp");
  world_ = world.communicator(all_ranks(world.size()), "world");
}

program::Ledger Groups::take_ledger() {
  program::Ledger ledger = data_->take_ledger();
  ledger.merge(world_->take_ledger());
  return ledger;
}

}  // namespace lockstep::engine
