#include "lockstep/nn/piece_states.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/base/check.h"

namespace lockstep::nn {
namespace {

// [B, P, ...] -> [P, B, ...], as it is sent.
at::Tensor by_piece(const at::Tensor& x) { return x.transpose(0, 1).contiguous(); }

}  // namespace

at::Tensor document_begins(const TokenPlaces* places) {
  if (!places || places->plain) return {};
  const at::Tensor begins = at::empty(places->index.sizes(), at::kByte);
  const int32_t* const index = places->index.const_data_ptr<int32_t>();
  const int32_t* const first = places->first_seen.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < begins.numel(); ++i) begins.data_ptr<uint8_t>()[i] = index[i] == first[i] ? 1 : 0;
  return begins;
}

PieceStates::PieceStates(PieceExchange& exchange, const TokenPlaces& places, int64_t tokens)
    : exchange_(exchange), places_(places), pieces_(pieces_of(places, tokens)) {
  LOCKSTEP_CHECK(places.ranks() == exchange.ranks() && places.rank == exchange.rank(), "tokens of rank ", places.rank, " of ",
                 places.ranks(), " on rank ", exchange.rank(), " of ", exchange.ranks());
}

at::Tensor PieceStates::of_piece(const at::Tensor& all, int64_t position) const {
  const Piece of = piece(position);
  return all.select(0, of.rank).select(0, of.number);
}

int64_t PieceStates::end(int64_t position) const {
  const int64_t begin = position * pieces_.length;
  return std::clamp(places_.length, begin, begin + pieces_.length);
}

Pending PieceStates::send_columns(const at::Tensor& x, int64_t count) {
  const at::Tensor own = at::zeros({pieces_.of_each, x.size(0), count, x.size(2)}, x.options());
  for (int64_t number = 0; number < pieces_.of_each; ++number) {
    const int64_t position = pieces_.position(exchange_.rank(), number), begin = position * pieces_.length;
    const int64_t held = std::min(count, end(position) - begin), last = number * pieces_.length + end(position) - begin;
    if (held > 0) own.select(0, number).narrow(1, count - held, held).copy_(x.narrow(1, last - held, held));
  }
  return exchange_.gather(own, PieceExchange::What::kColumns);
}

at::Tensor PieceStates::column(const at::Tensor& all, int64_t place) const {
  if (place < 0) return {};
  const int64_t position = place / pieces_.length, row = place - end(position) + all.size(3);
  if (place >= end(position) || row < 0) return {};
  return of_piece(all, position).select(1, row);
}

at::Tensor PieceStates::columns_before(const at::Tensor& all) const {
  const int64_t count = all.size(3);
  const at::Tensor before = at::zeros({all.size(2), pieces_.of_each, count, all.size(4)}, all.options());
  for (int64_t number = 0; number < pieces_.of_each; ++number) {
    const int64_t begin = pieces_.position(exchange_.rank(), number) * pieces_.length;
    for (int64_t i = 0; i < count; ++i)
      if (const at::Tensor from = column(all, begin - count + i); from.defined()) before.select(1, number).select(1, i).copy_(from);
  }
  hide(before);
  return before;
}

at::Tensor PieceStates::last_columns(const at::Tensor& all) const {
  const int64_t count = all.size(3);
  const at::Tensor last = at::zeros({all.size(2), count, all.size(4)}, all.options());
  for (int64_t i = 0; i < count; ++i)
    if (const at::Tensor from = column(all, places_.length - count + i); from.defined()) last.select(1, i).copy_(from);
  return last;
}

void PieceStates::hide(const at::Tensor& columns) const {
  if (places_.plain) return;
  const int32_t* const first = places_.first_seen.const_data_ptr<int32_t>();
  const int64_t count = columns.size(2);
  for (int64_t b = 0; b < columns.size(0); ++b)
    for (int64_t number = 0; number < pieces_.of_each; ++number) {
      const int64_t begin = pieces_.position(exchange_.rank(), number) * pieces_.length;
      const int64_t seen = first[b * places_.first_seen.size(1) + number * pieces_.length];  // by the piece's first token
      const int64_t hidden = std::clamp(seen - (begin - count), int64_t{0}, count);
      if (hidden > 0) columns.select(0, b).select(0, number).narrow(0, 0, hidden).zero_();
    }
}

Pending PieceStates::send_column_gradients(const at::Tensor& gradients) {
  hide(gradients);
  return exchange_.gather(by_piece(gradients), PieceExchange::What::kColumnGradients);
}

void PieceStates::add_column_gradients(const at::Tensor& all, const at::Tensor& dx) const {
  const int64_t count = all.size(3);
  for (int64_t position = 1; position < this->count(); ++position)
    for (int64_t i = 0; i < count; ++i) {
      const int64_t place = position * pieces_.length - count + i;
      if (place < 0 || !is_here(place / pieces_.length)) continue;
      const int64_t row = piece(place / pieces_.length).number * pieces_.length + place % pieces_.length;
      dx.select(1, row).add_(of_piece(all, position).select(1, i));
    }
}

Pending PieceStates::send_states(const ScanStates& states) {
  const at::Tensor after = states.after.flatten(3).transpose(0, 1);  // [P, B, H, state]
  const int64_t state = after.size(3);
  const at::Tensor own = at::empty({after.size(0), after.size(1), after.size(2), state + 1}, after.options());
  own.narrow(3, 0, state).copy_(after);
  own.select(3, state).copy_(states.decay.transpose(0, 1));
  return exchange_.gather(own, PieceExchange::What::kStates);
}

PieceStates::Folded PieceStates::fold(const at::Tensor& all, bool behind) const {
  const int64_t batch = all.size(2), heads = all.size(3), state = all.size(4) - 1;
  Folded folded{.first = at::empty({batch, pieces_.of_each, heads, state}, all.options()), .behind = {}, .decays = {}};
  at::Tensor sum = at::zeros({batch, heads, state}, all.options());
  int64_t wanted = behind ? count() : 0;  // pieces that are folded
  for (int64_t number = 0; number < pieces_.of_each; ++number)
    wanted = std::max(wanted, pieces_.position(exchange_.rank(), number));
  for (int64_t position = 0; position < count(); ++position) {
    if (is_here(position)) folded.first.select(1, piece(position).number).copy_(sum);
    if (position >= wanted) break;
    const at::Tensor of = of_piece(all, position);
    sum.mul_(of.narrow(2, state, 1)).add_(of.narrow(2, 0, state));
  }
  if (behind) folded.behind = std::move(sum);
  folded.decays = all.narrow(4, state, 1).clone(at::MemoryFormat::Contiguous);
  return folded;
}

Pending PieceStates::send_state_gradients(const at::Tensor& dfirst) {
  return exchange_.gather(by_piece(dfirst.flatten(3)), PieceExchange::What::kStateGradients);
}

at::Tensor PieceStates::fold_gradients(const at::Tensor& all, const at::Tensor& decays) const {
  const int64_t batch = all.size(2), heads = all.size(3), state = all.size(4);
  const at::Tensor dlast = at::empty({batch, pieces_.of_each, heads, state}, all.options());
  const at::Tensor sum = at::zeros({batch, heads, state}, all.options());
  int64_t wanted = count();  // pieces from here on are folded
  for (int64_t number = 0; number < pieces_.of_each; ++number)
    wanted = std::min(wanted, pieces_.position(exchange_.rank(), number));
  for (int64_t position = count() - 1; position >= wanted; --position) {
    if (is_here(position)) dlast.select(1, piece(position).number).copy_(sum);
    if (position > wanted) sum.mul_(of_piece(decays, position)).add_(of_piece(all, position));
  }
  return dlast;
}

}  // namespace lockstep::nn
