#include "lockstep/engine/groups.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::engine {

using program::Channel;
using program::GroupRef;

Groups::Groups(comm::World& world, const program::Layout& layout)
    : rank_(world.rank()), layout_(layout), domain_(layout.dense_domain()) {
  const int wanted = layout.mesh.world_size();
  if (world.size() != wanted)
    throw ConfigError({.code = "LS1102",
                       .what = cat("the layout needs ", wanted, " ranks, but ", world.size(), " were started"),
                       .way_out = cat("start with -n ", wanted)});
  for (const GroupRef& group : program::groups_of(layout_, rank_))
    made_.emplace_back(group, world.communicator(program::group_ranks(layout_, rank_, group), program::group_name(layout_, group)));
}

comm::Communicator* Groups::find(const GroupRef& group) {
  const auto found = std::ranges::find(made_, group, [](const auto& made) -> const GroupRef& { return made.first; });
  return found == made_.end() ? nullptr : found->second.get();
}

comm::Communicator& Groups::over(const GroupRef& group) {
  comm::Communicator* found = find(group);
  LOCKSTEP_CHECK(found != nullptr, "rank ", rank_, " made no group ", program::group_name(layout_, group));
  return *found;
}

comm::Communicator* Groups::several(const mesh::View& view) {
  return layout_.mesh.degree(view) == 1 ? nullptr : &over(program::group_over(layout_, view));
}

comm::Communicator& Groups::data() { return over(program::group_over(layout_, domain_.sum)); }

// Their number is a fact of the parameters that this rank holds: the fold is that of the group that was made.
comm::Communicator* Groups::shared_heads() {
  const auto heads = std::ranges::find_if(made_, [](const auto& made) { return made.first.view.axes == mesh::Axis::kKvCopies; });
  return heads == made_.end() ? nullptr : heads->second.get();
}

comm::Communicator& Groups::replica() { return over(program::group_over(layout_, layout_.all_ranks())); }

comm::Communicator* Groups::tied() {
  return layout_.tied_peer(rank_) < 0 ? nullptr : &over(program::tied_pair(layout_, rank_));
}

comm::Communicator& Groups::world() { return over(program::group_over(layout_, layout_.all_ranks(), Channel::kControl)); }

std::vector<std::pair<std::string, comm::Communicator*>> Groups::all() {
  std::vector<std::pair<std::string, comm::Communicator*>> groups;
  for (const auto& [group, communicator] : made_) {
    std::string name = program::group_name(layout_, group);
    if (group.channel == Channel::kForward || group.channel == Channel::kBackward) {
      const std::vector<int> ranks = program::group_ranks(layout_, rank_, group);
      name += cat(" ", ranks[0], " to ", ranks[1], group.channel == Channel::kForward ? " activations" : " gradients");
    }
    groups.emplace_back(std::move(name), communicator.get());
  }
  return groups;
}

program::Ledger Groups::take_ledger() {
  program::Ledger ledger;
  for (const auto& [name, group] : all()) ledger.merge(group->take_ledger());
  return ledger;
}

}  // namespace lockstep::engine
