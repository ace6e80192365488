#include "lockstep/program/groups.h"

#include <algorithm>
#include <array>

#include "lockstep/base/check.h"
#include "lockstep/program/layout.h"
#include "lockstep/program/matrices.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::program {
namespace {

using mesh::Axis;

struct AxesName {
  mesh::AxisSet axes;
  const char* name = nullptr;
};
// A group has the first name whose axes with several ranks are its own.
constexpr AxesName kNames[] = {
    {Axis::kDpReplicate | Axis::kDpShard, "dp"},
    {Axis::kTp, "tp"},
    {Axis::kPp, "pp"},
    {Axis::kCp, "cp"},
    {Axis::kDpShard, "dp_shard"},
    {Axis::kDpReplicate, "dp_replicate"},
    {Axis::kPp | Axis::kTp, "model"},
    {Axis::kDpReplicate | Axis::kDpShard | Axis::kCp, "dp_cp"},
    {Axis::kDpShard | Axis::kCp, "dp_shard_cp"},
    {Axis::kEdpReplicate | Axis::kEdpShard, "edp"},
    {Axis::kEp, "ep"},
    {Axis::kEtp, "etp"},
    {Axis::kEp | Axis::kEtp, "ep_etp"},
    {Axis::kEdpShard, "edp_shard"},
    {Axis::kEdpReplicate | Axis::kEdpShard | Axis::kEtp, "edp_etp"},
    {Axis::kEdpShard | Axis::kEtp, "edp_shard_etp"},
    {Axis::kCpInner, "cp_inner"},
    {Axis::kCpOuter, "cp_outer"},
    {Axis::kEpNodes, "ep_nodes"},
    {Axis::kEpNode, "ep_node"},
    {Axis::kPp | Axis::kDpReplicate | Axis::kDpShard | Axis::kCp | Axis::kTp, "replica"},
    {Axis::kDpShard | Axis::kTp, "dp_shard_tp"},
    {Axis::kDpReplicate | Axis::kDpShard | Axis::kTp, "dp_tp"},
    {Axis::kCp | Axis::kTp, "cp_tp"},
    {Axis::kDpShard | Axis::kCp | Axis::kTp, "dp_shard_cp_tp"},
    {Axis::kDpReplicate | Axis::kDpShard | Axis::kCp | Axis::kTp, "dp_cp_tp"},
};

}  // namespace

GroupRef group_over(const Layout& layout, const mesh::View& view, Channel channel) {
  return {.view = layout.mesh.reduced(view), .channel = channel};
}

GroupRef stage_link(int from, int to, bool forward) {
  return {.view = Axis::kPp, .channel = forward ? Channel::kForward : Channel::kBackward, .first = from, .second = to};
}

GroupRef tied_pair(const Layout& layout, int rank) {
  const int peer = layout.tied_peer(rank);
  LOCKSTEP_CHECK(peer >= 0, "rank ", rank, " holds no tied unit that another rank holds too");
  const auto [first, second] = std::minmax({layout.pipeline_rank(rank), layout.pipeline_rank(peer)});
  return {.view = Axis::kPp, .channel = Channel::kTied, .first = first, .second = second};
}

mesh::View same_heads(const Layout& layout, int copies) {
  return {mesh::heads_fold(layout.mesh.degree(Axis::kTp), copies), Axis::kKvCopies};
}

int group_size(const Layout& layout, const GroupRef& group) { return group.is_pair() ? 2 : layout.mesh.degree(group.view); }

int group_rank(const Layout& layout, int rank, const GroupRef& group) {
  const int index = layout.mesh.group_rank(rank, group.view);
  if (!group.is_pair()) return index;
  LOCKSTEP_CHECK(index == group.first || index == group.second, "rank ", rank, " is member ", index, " of ",
                 group_name(layout, group), ", and not one of ", group.first, " and ", group.second);
  return index == group.first ? 0 : 1;
}

std::vector<int> group_ranks(const Layout& layout, int rank, const GroupRef& group) {
  if (!group.is_pair()) return layout.mesh.group(rank, group.view);
  return {layout.mesh.member(rank, group.view, group.first), layout.mesh.member(rank, group.view, group.second)};
}

std::string group_name(const Layout& layout, const GroupRef& group) {
  if (group.channel == Channel::kTied) return "tied";
  if (group.channel == Channel::kControl) return "world";
  const mesh::AxisSet several = layout.mesh.several(group.view.fold), axes = group.view.axes & several;
  for (const AxesName& known : kNames)
    if ((known.axes & several) == axes) return known.name;
  return mesh::view_name(group.view);
}

std::vector<GroupRef> groups_of(const Layout& layout, int rank) {
  std::vector<GroupRef> groups = {group_over(layout, layout.dense_domain().sum)};
  const auto add = [&](const GroupRef& group) {
    if (group_size(layout, group) > 1 && std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  };
  for (const arch::ParameterGroup group : arch::kParameterGroups) {
    if (group == arch::ParameterGroup::kRows && !layout.tensor_shard(rank).row_groups) continue;
    if (group == arch::ParameterGroup::kExperts && !layout.model.has_experts()) continue;
    const Domain domain = layout.domain(group);
    for (const mesh::View& view : {domain.sum, domain.shard, domain.copies}) add(group_over(layout, view));
  }
  add(group_over(layout, Axis::kTp));
  if (layout.mesh.degree(Axis::kTp) > 1)
    add(group_over(layout, same_heads(layout, partial_gradients(layout.param_table(rank)).copies)));
  add(group_over(layout, Axis::kCp, Channel::kContext));
  if (layout.nests_context())
    for (const mesh::View& view : {layout.context_inner_ranks(), layout.context_outer_ranks()}) add(group_over(layout, view, Channel::kContext));
  if (layout.model.has_experts()) add(group_over(layout, layout.expert_ranks(), Channel::kExperts));
  if (layout.dispatches_by_node())
    for (const mesh::View& view : {layout.expert_nodes(), layout.expert_node()}) add(group_over(layout, view, Channel::kExperts));
  for (const GroupRef& group : matrix_groups(layout, rank)) add(group);
  add(group_over(layout, layout.model_group()));
  const Pipeline& pipeline = layout.pipeline;
  const int own = layout.pipeline_rank(rank);
  for (int stage = 0; stage + 1 < pipeline.stages(); ++stage) {
    const int here = pipeline.rank_of(stage), next = pipeline.rank_of(stage + 1);
    if (here == next || (own != here && own != next)) continue;
    add(stage_link(here, next, true));
    add(stage_link(next, here, false));
  }
  if (layout.tied_peer(rank) >= 0) add(tied_pair(layout, rank));
  add(group_over(layout, layout.all_ranks()));
  groups.push_back(group_over(layout, layout.all_ranks(), Channel::kControl));
  return groups;
}

}  // namespace lockstep::program
