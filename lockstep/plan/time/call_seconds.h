// How long the planned calls of a rank take (program/planned_calls.h): each by collective_time() with the shape of its group.
#pragma once

#include <map>
#include <vector>

#include "lockstep/plan/cluster/collective_time.h"
#include "lockstep/plan/time/step_estimate.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::plan {

// Seconds of the calls inside a layer, by the axis whose waits they are. Nothing of it is hidden.
struct LayerCalls {
  double tensor = 0, context = 0, experts = 0;
  double gathers = 0;  // over tp: x once more, for weight gradients
};

// Of one rank. Layout, placement, stack and options outlive it.
class CallSeconds {
 public:
  CallSeconds(const program::Layout& layout, const Placement& placement, const Stack& stack, const EstimateOptions& options, int rank);

  // Transfers at Stack::network_share of their rate alone. On GPUs gradients that the plan exchanges in bf16 count as NCCL's reduce_scatter.
  double of(const program::PlannedCall& call);
  // The calls of one action; on GPUs those of one kind over one group as one (ncclGroupStart, coalescing of PyTorch).
  std::vector<program::PlannedCall> together(const std::vector<program::PlannedCall>& calls) const;
  // Of a layer's parameters or their gradients, in Stack::shard_calls calls of a tensor each over Stack::shard_nics NICs.
  double of_tensors(const program::PlannedCall& call);
  // One after the other. Rows that travel over nodes and then inside one, and back, do both at once: the longer of the two counts
  // (DeepSeek-AI 2024, section 3.2.2). They go to as many nodes as random routing makes different, and take EstimateOptions::imbalance times
  // as long.
  LayerCalls of_layer(const std::vector<program::PlannedCall>& calls);

  const GroupShape& shape(const program::GroupRef& group);
  // It leaves its node, or the domain that spans nodes.
  bool over_nics(const program::GroupRef& group);

 private:
  CollectiveTime time_of(const program::PlannedCall& call);
  double share_of_nodes(const program::PlannedCall& call) const;

  const program::Layout& layout_;
  const Placement& placement_;
  const Stack& stack_;
  const EstimateOptions& options_;
  const int rank_;
  std::map<program::GroupRef, GroupShape> shapes_;
};

}  // namespace lockstep::plan
