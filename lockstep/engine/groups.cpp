#include "lockstep/engine/groups.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::engine {

using program::Channel;
using program::Collective;
using program::GroupRef;

namespace {

void check(const program::PlannedCall& call, const CallTensors& tensors) {
  const at::Tensor& full = call.collective == Collective::kAllGather ? tensors.output : tensors.input;
  LOCKSTEP_CHECK(full.defined(), program::call_text(call.id), " without a tensor");
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(full.element_size()), call.element_size, "bytes of an element of ", program::call_text(call.id));
  if (call.collective == Collective::kSend || call.collective == Collective::kRecv) return;
  LOCKSTEP_CHECK_EQ(full.numel(), call.numel, "elements of ", program::call_text(call.id));
}

}  // namespace

Groups::Groups(comm::World& world, const program::Layout& layout) : rank_(world.rank()), layout_(layout) {
  const int wanted = layout.mesh.world_size();
  if (world.size() != wanted)
    throw ConfigError({.code = "LS1102",
                       .what = cat("the layout needs ", wanted, " ranks, but ", world.size(), " were started"),
                       .way_out = cat("start with -n ", wanted)});
  for (const GroupRef& group : program::groups_of(layout_, rank_))
    made_.emplace_back(group, world.communicator(program::group_ranks(layout_, rank_, group), program::group_name(layout_, group)));
}

comm::Communicator& Groups::over(const GroupRef& group) {
  const auto found = std::ranges::find(made_, group, [](const auto& made) -> const GroupRef& { return made.first; });
  LOCKSTEP_CHECK(found != made_.end(), "rank ", rank_, " made no group ", program::group_name(layout_, group));
  return *found->second;
}

comm::Communicator* Groups::several(const mesh::View& view) {
  return layout_.mesh.degree(view) == 1 ? nullptr : &over(program::group_over(layout_, view));
}

comm::Communicator& Groups::data() { return over(program::group_over(layout_, layout_.dense_domain().sum)); }

// Their number is a fact of the parameters that this rank holds: the fold is that of the group that was made.
comm::Communicator* Groups::shared_heads() {
  const auto heads = std::ranges::find_if(made_, [](const auto& made) { return made.first.view.axes == mesh::Axis::kKvCopies; });
  return heads == made_.end() ? nullptr : heads->second.get();
}

comm::Communicator* Groups::experts() {
  if (layout_.ep * layout_.etp == 1) return nullptr;
  return &over(program::group_over(layout_, layout_.expert_ranks(), Channel::kExperts));
}

comm::Communicator* Groups::expert_nodes() {
  return layout_.dispatches_by_node() ? &over(program::group_over(layout_, layout_.expert_nodes(), Channel::kExperts)) : nullptr;
}
comm::Communicator* Groups::expert_node() {
  return layout_.dispatches_by_node() ? &over(program::group_over(layout_, layout_.expert_node(), Channel::kExperts)) : nullptr;
}

comm::Communicator* Groups::context() {
  if (layout_.context_shard().ranks == 1) return nullptr;
  return &over(program::group_over(layout_, mesh::Axis::kCp, Channel::kContext));
}
comm::Communicator* Groups::context_inner() {
  return layout_.nests_context() ? &over(program::group_over(layout_, layout_.context_inner_ranks(), Channel::kContext)) : nullptr;
}
comm::Communicator* Groups::context_outer() {
  return layout_.nests_context() ? &over(program::group_over(layout_, layout_.context_outer_ranks(), Channel::kContext)) : nullptr;
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

comm::Work execute(Groups& groups, const program::PlannedCall& call, const CallTensors& tensors, bool blocking) {
  check(call, tensors);
  comm::Communicator& ranks = groups.over(call.group);
  const comm::CallOptions options{.id = call.id, .algorithm = call.algorithm, .blocking = blocking};
  switch (call.collective) {
    case Collective::kAllReduce:
      return ranks.all_reduce(tensors.input, options);
    case Collective::kReduce:
      return ranks.reduce(tensors.input, call.root, options);
    case Collective::kBroadcast:
      return ranks.broadcast(tensors.input, call.root, options);
    case Collective::kAllGather:
      return ranks.all_gather(tensors.input, tensors.output, options);
    case Collective::kReduceScatter:
      return ranks.reduce_scatter(tensors.input, tensors.output, options);
    case Collective::kAllToAll:
      return ranks.all_to_all(tensors.input, tensors.output, options);
    case Collective::kShift:
      return ranks.shift(tensors.input, tensors.output, options);
    case Collective::kShiftBack:
      return ranks.shift_back(tensors.input, tensors.output, options);
    case Collective::kSend:
      return ranks.send(tensors.input, call.root, options);
    case Collective::kRecv:
      return ranks.recv(tensors.input, call.root, options);
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kBarrier:
      break;
  }
  throw InternalError(cat("no list plans a ", program::collective_name(call.collective)));
}

}  // namespace lockstep::engine
