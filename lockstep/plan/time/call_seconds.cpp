#include "lockstep/plan/time/call_seconds.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <tuple>

namespace lockstep::plan {

using program::Channel;
using program::GroupRef;
using program::PlannedCall;

namespace {

// Rows on their way to experts, or back.
bool carries_rows(const PlannedCall& call) {
  const std::string_view name = call.id.name.data();
  return call.group.channel == Channel::kExperts && (name.find(".dispatch") != std::string_view::npos || name.find(".combine") != std::string_view::npos);
}
bool leads_there(const PlannedCall& call) { return std::string_view(call.id.name.data()).find(".dispatch") != std::string_view::npos; }

// Of n nodes those that at least one of k experts is on, chosen at random.
double different_nodes(double n, double k) { return n * (1 - std::pow(1 - 1 / n, k)); }

}  // namespace

CallSeconds::CallSeconds(const program::Layout& layout, const Placement& placement, const Stack& stack, const EstimateOptions& options, int rank)
    : layout_(layout), placement_(placement), stack_(stack), options_(options), rank_(rank) {}

const GroupShape& CallSeconds::shape(const GroupRef& group) {
  const auto [entry, fresh] = shapes_.try_emplace(group);
  if (!fresh) return entry->second;
  if (group.is_pair()) {
    const std::vector<int> pair = program::group_ranks(layout_, rank_, group);
    entry->second = shape_of_pair(placement_, pair[0], pair[1]);
  } else {
    entry->second = shape_of(placement_, layout_.mesh, group.view, rank_);
  }
  return entry->second;
}

bool CallSeconds::over_nics(const GroupRef& group) {
  const Cluster& cluster = placement_.cluster();
  const GroupShape& of = shape(group);
  return cluster.domain > cluster.devices_per_node ? of.domains > 1 : of.nodes > 1;
}

CollectiveTime CallSeconds::time_of(const PlannedCall& call) {
  const double bytes = call.collective == program::Collective::kBarrier ? 8 : static_cast<double>(call.bytes());
  // Gradients in bf16 are exchanged and summed in fp32 here; libraries on GPUs let NCCL's ring sum them.
  const bool sums = call.id.purpose == program::Purpose::kReduceGrad && call.collective == program::Collective::kAllToAll;
  const bool by_ring = sums && placement_.cluster().device.generation != Generation::kCpu;
  CollectiveTime time = collective_time(placement_.cluster(), shape(call.group), by_ring ? program::Collective::kReduceScatter : call.collective, bytes);
  time.transfer /= stack_.network_share;
  return time;
}

double CallSeconds::of(const PlannedCall& call) { return time_of(call).seconds(); }

std::vector<PlannedCall> CallSeconds::together(const std::vector<PlannedCall>& calls) const {
  if (placement_.cluster().device.generation == Generation::kCpu) return calls;
  std::vector<PlannedCall> merged;
  for (const PlannedCall& call : calls) {
    const auto same = [&](const PlannedCall& other) {
      return other.group == call.group && other.collective == call.collective && other.element_size == call.element_size;
    };
    const auto found = std::ranges::find_if(merged, same);
    if (found == merged.end()) merged.push_back(call);
    else found->numel += call.numel;
  }
  return merged;
}

double CallSeconds::of_tensors(const PlannedCall& call) {
  if (stack_.shard_calls <= 1 && stack_.shard_nics <= 0) return of(call);
  PlannedCall tensor = call;
  tensor.numel = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(call.numel) / stack_.shard_calls));
  CollectiveTime time = time_of(tensor);
  const double nics = std::min(shape(call.group).per_node, placement_.cluster().nics_per_node);
  // At the whole rate of these NICs: the others stand idle.
  if (stack_.shard_nics > 0 && over_nics(call.group)) time.transfer *= stack_.network_share * std::max(1.0, nics / stack_.shard_nics);
  return stack_.shard_calls * time.seconds();
}

// The description counts as many nodes as there can be.
double CallSeconds::share_of_nodes(const PlannedCall& call) const {
  if (!layout_.dispatches_by_node() || call.group != program::group_over(layout_, layout_.expert_nodes(), Channel::kExperts)) return 1;
  const arch::ExpertSizes& experts = layout_.model.experts;
  if (experts.router == config::Router::kExpertChoice) return 1;
  const double nodes = program::group_size(layout_, call.group), most = std::min(nodes, static_cast<double>(experts.per_token));
  double reached = different_nodes(nodes, static_cast<double>(experts.per_token));
  if (experts.groups > 1) reached = std::min(reached, static_cast<double>(experts.top_groups));
  return reached / most;
}

LayerCalls CallSeconds::of_layer(const std::vector<PlannedCall>& calls) {
  LayerCalls sum;
  // Of rows by the way they go and whose they are, and by group.
  std::map<std::tuple<bool, arch::CallPhase, GroupRef>, CollectiveTime> rows;
  for (const PlannedCall& call : calls) {
    if (carries_rows(call)) {
      const CollectiveTime time = time_of(call);
      CollectiveTime& all = rows[{leads_there(call), call.id.phase, call.group}];
      all.latency += time.latency;
      all.transfer += time.transfer * share_of_nodes(call) * options_.imbalance;
      continue;
    }
    const double seconds = of(call);
    if (call.group.channel == Channel::kExperts) sum.experts += seconds;
    else if (call.group.channel == Channel::kContext) sum.context += seconds;
    else if (call.id.phase == arch::CallPhase::kGather) sum.gathers += seconds;
    else sum.tensor += seconds;
  }
  std::map<std::pair<bool, arch::CallPhase>, double> longest;
  for (const auto& [key, time] : rows) {
    double& most = longest[{std::get<0>(key), std::get<1>(key)}];
    most = std::max(most, time.transfer);
    sum.experts += time.latency;
  }
  for (const auto& [way, transfer] : longest) sum.experts += transfer;
  return sum;
}

}  // namespace lockstep::plan
