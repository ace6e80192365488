// Keys and values go round, rank by rank, while the queries stay (Liu et al., Ring Attention, 2023).
#pragma once

#include <memory>
#include <optional>

#include "lockstep/nn/context_attention.h"
#include "lockstep/parallel/context/blocks.h"
#include "lockstep/parallel/context/group.h"
#include "lockstep/parallel/context/window_ends.h"

namespace lockstep::parallel {

// A ring over the ranks `over`, whose tokens the places know by rank of it.
class Ring {
 public:
  Ring(ContextGroup& group, ContextGroup::Over over, const program::CallId& calls) : group_(group), over_(over), calls_(calls) {}
  // Size 1: no calls; all keys are here.
  Ring(ContextGroup& group, const program::CallId& calls) : group_(group), calls_(calls), alone_(true) {}

  // Of a window no longer than a piece its ends alone travel (window_ends.h). Else
  // n - 1 steps, or as many as a window reaches: the block that is here is on its way to the next rank while the queries here see it.
  nn::SeenSums forward(const QueriesHere& queries, KeyBlocks& blocks) const;
  // Blocks go round once more. The gradients of each, fp32, go behind it, gain what every rank makes of them, and come home with the n-th
  // step, however far the block went -> those of own().
  at::Tensor backward(const QueriesHere& queries, KeyBlocks& blocks, const QueriesHere::Backward& pass) const;

 private:
  int size() const { return alone_ ? 1 : group_.over(over_).size(); }
  int rank() const { return alone_ ? 0 : group_.over(over_).rank(); }
  int hops(const QueriesHere& queries) const;
  std::optional<WindowEnds> ends(const QueriesHere& queries) const;
  // What is here after so many steps came from there.
  int source(int step) const { return (rank() + size() - step) % size(); }
  nn::Pending shift(const at::Tensor& tensor, program::CallPhase phase) const;

  ContextGroup& group_;
  const ContextGroup::Over over_ = ContextGroup::Over::kAll;
  const program::CallId calls_;
  const bool alone_ = false;
};

std::unique_ptr<nn::ContextAttention> make_ring_attention(ContextGroup& group, const program::CallId& calls);

}  // namespace lockstep::parallel
