// Sequences that ranks hold in pieces of consecutive tokens, and what of each piece all others need: the ends of a convolution, the state
// behind a piece. parallel/context has the one of several ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/nn/linear.h"
#include "lockstep/nn/token_places.h"

namespace lockstep::nn {

class PieceExchange {
 public:
  // Each made once a pass, in this order. Of forward: the last columns of every piece, the states behind them. Of backward: the gradients
  // of the states before them, the gradients of the columns. They have names of their own ("columns", "states"; forward, backward).
  enum class What { kColumns, kStates, kStateGradients, kColumnGradients };
  virtual ~PieceExchange() = default;
  virtual int ranks() const = 0;
  virtual int rank() const = 0;
  // own [pieces of this rank, ...] contiguous, as large on every rank -> [ranks, pieces, ...].
  virtual Pending gather(const at::Tensor& own, What what) = 0;
};

// The pieces of a sequence: equal, consecutive tokens each, every rank has as many (zigzag 2, contiguous 1).
struct Pieces {
  int64_t of_each = 1;   // pieces that a rank holds, in the order of its rows
  int64_t length = 0;    // tokens of each; the last pieces may be filled up behind the end of the sequence
  // By place in the sequence: which piece, as rank * of_each + its number on that rank.
  std::vector<int64_t> order{};
  int64_t position(int rank, int64_t piece) const;  // of that piece in `order`
};
// `tokens`: of each sequence on a rank. InternalError where a rank's tokens are not such pieces, the same of all sequences of the
// microbatch. With one rank: one piece.
Pieces pieces_of(const TokenPlaces& places, int64_t tokens);

}  // namespace lockstep::nn
