#include "lockstep/engine/groups.h"

#include <array>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::engine {
namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Groups::Groups(comm::World& world, const program::Layout& layout)
    : rank_(world.rank()),
      sharded_(layout.shards() > 1),
      replicated_(layout.mesh.degree(mesh::Axis::kDpReplicate) > 1) {
  const mesh::Mesh& mesh = layout.mesh;
  if (world.size() != mesh.world_size())
    throw ConfigError({.code = "LS1102",
                       .what = cat("the layout needs ", mesh.world_size(), " ranks, but ", world.size(), " were started"),
                       .way_out = cat("start with -n ", mesh.world_size())});
  data_ = world.communicator(mesh.group(rank_, mesh::kDataAxes), "dp");
  if (sharded_ && replicated_) {
    constexpr std::array kShard = {mesh::Axis::kDpShard}, kReplicate = {mesh::Axis::kDpReplicate};
    dp_shard_ = world.communicator(mesh.group(rank_, kShard), "dp_shard");
    dp_replicate_ = world.communicator(mesh.group(rank_, kReplicate), "dp_replicate");
  }
  const std::vector<int> tensor = mesh.group(rank_, program::kTensorAxis);
  if (tensor.size() > 1) {
    tensor_ = world.communicator(tensor, "tp");
    const int copies = program::partial_gradients(layout.param_table(rank_)).copies;
    const auto first = tensor.begin() + mesh.group_rank(rank_, program::kTensorAxis) / copies * copies;
    if (copies > 1) shared_heads_ = world.communicator({first, first + copies}, "kv");
  }
  if (mesh.degree(mesh::Axis::kPp) > 1) {
    model_ = world.communicator(mesh.group(rank_, program::kModelAxes), program::model_axis(layout));
    link_stages(world, layout);
    if (const int peer = layout.tied_peer(rank_); peer >= 0)
      tied_ = world.communicator({std::min(rank_, peer), std::max(rank_, peer)}, "tied");
  }
  if (data_->size() > 1 && mesh.degree(program::kModelAxes) > 1)
    replica_ = world.communicator(mesh.group(rank_, program::kReplicaAxes), program::replica_axis(layout));
  world_ = world.communicator(all_ranks(world.size()), "world");
}

// In the order of the stages on every rank: whoever makes a channel waits for nobody who waits for it.
void Groups::link_stages(comm::World& world, const program::Layout& layout) {
  for (int stage = 0; stage + 1 < layout.pipeline.stages(); ++stage) {
    const int here = layout.rank_at(rank_, stage), next = layout.rank_at(rank_, stage + 1);
    if (here == next || (rank_ != here && rank_ != next)) continue;
    for (const Link& link : {Link{here, next, true}, Link{next, here, false}})
      if (!links_.contains(link)) links_[link] = world.communicator({link.from, link.to}, "pp");
  }
}

comm::Communicator& Groups::link(int from, int to, bool forward) { return *links_.at({from, to, forward}); }

comm::Communicator* Groups::model() { return model_ ? model_.get() : tensor_.get(); }

comm::Communicator& Groups::replica() {
  if (replica_) return *replica_;
  return model() ? *model() : *data_;
}

std::vector<std::pair<std::string, comm::Communicator*>> Groups::all() {
  std::vector<std::pair<std::string, comm::Communicator*>> groups;
  for (const auto& [name, group] : {std::pair{"dp", &data_}, {"dp_shard", &dp_shard_}, {"dp_replicate", &dp_replicate_},
                                    {"tp", &tensor_}, {"kv", &shared_heads_}, {"model", &model_}, {"tied", &tied_},
                                    {"replica", &replica_}, {"world", &world_}})
    if (*group) groups.emplace_back(name, group->get());
  for (const auto& [link, group] : links_)
    groups.emplace_back(cat("pp ", link.from, " to ", link.to, link.forward ? " activations" : " gradients"), group.get());
  return groups;
}

program::Ledger Groups::take_ledger() {
  program::Ledger ledger;
  for (const auto& [name, group] : all()) ledger.merge(group->take_ledger());
  return ledger;
}

}  // namespace lockstep::engine
