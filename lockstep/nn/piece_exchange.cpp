#include "lockstep/nn/piece_exchange.h"

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::nn {
namespace {

// Where piece `piece` of `length` tokens begins in every sequence; -1: it is no such piece. Places are ascending, so one whose ends are
// `length` apart has no gap.
int64_t begin_of(const at::Tensor& index, int64_t piece, int64_t length) {
  const int32_t* const places = index.const_data_ptr<int32_t>();
  const int64_t row = index.size(1), begin = places[piece * length];
  for (int64_t b = 0; b < index.size(0); ++b) {
    const int32_t* const of_piece = places + b * row + piece * length;
    if (of_piece[0] != begin || of_piece[length - 1] != begin + length - 1) return -1;
  }
  return begin;
}

// Nothing where some rank's tokens are not `of_each` pieces.
std::vector<int64_t> order_of(const TokenPlaces& places, int64_t of_each, int64_t length) {
  const int64_t count = places.ranks() * of_each;
  std::vector<int64_t> order(static_cast<size_t>(count), -1);
  for (int64_t rank = 0; rank < places.ranks(); ++rank)
    for (int64_t piece = 0; piece < of_each; ++piece) {
      const int64_t begin = begin_of(places.index_of_ranks[static_cast<size_t>(rank)], piece, length);
      if (begin < 0 || begin % length != 0 || begin / length >= count) return {};
      order[static_cast<size_t>(begin / length)] = rank * of_each + piece;
    }
  for (const int64_t piece : order)
    if (piece < 0) return {};
  return order;
}

}  // namespace

int64_t Pieces::position(int rank, int64_t piece) const {
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] == rank * of_each + piece) return static_cast<int64_t>(i);
  throw InternalError(cat("no piece ", piece, " of rank ", rank));
}

Pieces pieces_of(const TokenPlaces& places, int64_t tokens) {
  if (places.ranks() == 1) return {.of_each = 1, .length = tokens, .order = {0}};
  for (const at::Tensor& index : places.index_of_ranks)
    LOCKSTEP_CHECK(index.is_contiguous() && index.size(1) == tokens, index.size(1), " places of ", tokens, " tokens");
  for (int64_t of_each = 1; of_each <= 2; ++of_each) {
    if (tokens % of_each != 0) continue;
    Pieces pieces{.of_each = of_each, .length = tokens / of_each, .order = order_of(places, of_each, tokens / of_each)};
    if (!pieces.order.empty()) return pieces;
  }
  throw InternalError(cat("the ", tokens, " tokens of a sequence on each of ", places.ranks(),
                          " ranks are not one or two pieces of consecutive ones, all of one length"));
}

}  // namespace lockstep::nn
