// What the pieces of a sequence tell each other for a state space, and what comes of it: the last columns of each piece before a
// convolution, the states behind all pieces, and the gradients of both. Everything is gathered on every rank, as a state is much smaller than
// the tokens that made it, and each rank folds what lies before (backward: behind) its own pieces.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/nn/piece_exchange.h"
#include "lockstep/nn/state_space_core.h"
#include "lockstep/nn/token_places.h"

namespace lockstep::nn {

// [B, T] uint8 of the host: 1 where a document begins. Undefined where each sequence is one, from its beginning on.
at::Tensor document_begins(const TokenPlaces* places);

// Of one pass; it refers to both arguments. P: pieces of a rank. W - 1: columns that a convolution sees before a token.
class PieceStates {
 public:
  // InternalError where the places are those of another rank, or no pieces.
  PieceStates(PieceExchange& exchange, const TokenPlaces& places, int64_t tokens);

  const Pieces& pieces() const { return pieces_; }

  // x [B, T, C], last dim contiguous. On its way: the last `count` columns of every piece, [ranks, P, B, count, C].
  Pending send_columns(const at::Tensor& x, int64_t count);
  // Before each piece here, zero before its document: [B, P, count, C].
  at::Tensor columns_before(const at::Tensor& all) const;
  // Behind all tokens: [B, count, C].
  at::Tensor last_columns(const at::Tensor& all) const;
  // gradients [B, P, count, C] fp32 of columns_before(); written to where they are hidden.
  Pending send_column_gradients(const at::Tensor& gradients);
  // Adds what all pieces say of the columns here to dx [B, T, C].
  void add_column_gradients(const at::Tensor& all, const at::Tensor& dx) const;

  // `after` and `decay` as one tensor: [ranks, P, B, H, state + 1] fp32.
  Pending send_states(const ScanStates& states);
  struct Folded {
    at::Tensor first;   // [B, P, H, state]: before each piece here
    at::Tensor behind;  // [B, H, state]: behind the last of all pieces, where it is wanted
    at::Tensor decays;  // [ranks, P, B, H, 1]: a copy
  };
  Folded fold(const at::Tensor& all, bool behind) const;
  // dfirst [B, P, H, ...] fp32 -> [ranks, P, B, H, state].
  Pending send_state_gradients(const at::Tensor& dfirst);
  // Of the state behind each piece here: [B, P, H, state].
  at::Tensor fold_gradients(const at::Tensor& all, const at::Tensor& decays) const;

 private:
  struct Piece {
    int64_t rank = 0, number = 0;  // on its rank
  };
  Piece piece(int64_t position) const {
    const int64_t of = pieces_.order[static_cast<size_t>(position)];
    return {.rank = of / pieces_.of_each, .number = of % pieces_.of_each};
  }
  int64_t count() const { return static_cast<int64_t>(pieces_.order.size()); }
  bool is_here(int64_t position) const { return piece(position).rank == exchange_.rank(); }
  at::Tensor of_piece(const at::Tensor& all, int64_t position) const;  // [B, ...]
  int64_t end(int64_t position) const;  // behind its last token that is within the sequence
  // Of place `place` of the sequences: [B, C]; undefined where nobody has sent it.
  at::Tensor column(const at::Tensor& all, int64_t place) const;
  void hide(const at::Tensor& columns) const;  // those of other documents become zero

  PieceExchange& exchange_;
  const TokenPlaces& places_;
  const Pieces pieces_;
};

}  // namespace lockstep::nn
