// A window that is no longer than a piece reaches the last tokens of the piece before it, and no others: their keys and values go to who has
// the next piece, their gradients come back, and nothing goes round.
#pragma once

#include <vector>

#include "lockstep/parallel/context/blocks.h"
#include "lockstep/parallel/context/group.h"

namespace lockstep::parallel {

class WindowEnds {
 public:
  // `tokens` of each piece: arch::ContextShard::window_ends. Ranks are at least two.
  WindowEnds(ContextGroup& group, ContextGroup::Over over, const program::CallId& calls, int64_t tokens)
      : group_(group), over_(over), calls_(calls), tokens_(tokens) {}

  // As those of Ring.
  nn::SeenSums forward(const QueriesHere& queries, KeyBlocks& blocks) const;
  at::Tensor backward(const QueriesHere& queries, KeyBlocks& blocks, const QueriesHere::Backward& pass) const;

 private:
  // The piece after an early one is the next rank's, the one after a late one (zigzag) that of the rank before.
  struct End {
    int64_t first = 0;      // of its rows, on any rank
    bool to_next = true;
    TokenRows came{};       // what comes here: of the rank on the other side
  };
  std::vector<End> ends(const QueriesHere& queries) const;
  struct Sent {
    at::Tensor tensor;  // as long as it is on its way
    nn::Pending coming;
    at::Tensor join();  // what has come in its place
  };
  Sent send(const at::Tensor& tensor, bool to_next, program::CallPhase phase) const;
  std::vector<Sent> send_own(const std::vector<End>& ends, const KeyBlocks& blocks, program::CallPhase phase) const;

  ContextGroup& group_;
  const ContextGroup::Over over_;
  const program::CallId calls_;
  const int64_t tokens_;
};

}  // namespace lockstep::parallel
