// Generation of a state space: a slot keeps the state behind its last token and the columns that the convolution sees next.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/state_space.h"

namespace lockstep::nn {
namespace {

// The rows of a cache that a call is about, in its order: neighbours as they lie, others as a copy.
class SlotRows {
 public:
  explicit SlotRows(std::span<const CacheSpan> spans) : spans_(spans) {
    for (size_t b = 0; b < spans.size(); ++b) neighbours_ = neighbours_ && spans[b].slot == spans[0].slot + static_cast<int64_t>(b);
  }
  at::Tensor take(const at::Tensor& of) const {
    return neighbours_ ? of.narrow(0, spans_[0].slot, static_cast<int64_t>(spans_.size())) : of.index_select(0, slots().to(of.device()));
  }
  void put(const at::Tensor& rows, const at::Tensor& of) const {
    if (!neighbours_)
      of.index_copy_(0, slots().to(of.device()), rows);
    else if (const at::Tensor there = take(of); there.data_ptr() != rows.data_ptr())
      there.copy_(rows);
  }

 private:
  at::Tensor slots() const {
    const at::Tensor slots = at::empty({static_cast<int64_t>(spans_.size())}, at::kLong);
    for (size_t b = 0; b < spans_.size(); ++b) slots.data_ptr<int64_t>()[b] = spans_[b].slot;
    return slots;
  }
  std::span<const CacheSpan> spans_;
  bool neighbours_ = true;
};

// state [B, H, P, N], in place: behind all tokens.
at::Tensor scan_from(const Scan& scan, const at::Tensor& state, bool begins) {
  if (scan.x.size(1) == 1) return scan_step(scan, state);
  ScanStates states;
  const at::Tensor y = scan_forward(scan, &states);
  if (!begins) {  // else the states there are zero
    add_first_states(scan, state.unsqueeze(1), states, y);
    state.mul_(states.decay.select(1, 0).unsqueeze(2).unsqueeze(3));
  }
  state.add_(states.after.select(1, 0));
  return y;
}

// Tokens behind the end of the prompt change no state.
void stop_behind_end(const TokenPlaces& places, const at::Tensor& delta) {
  for (int64_t t = 0; t < delta.size(1); ++t)
    if (places.index.const_data_ptr<int32_t>()[t] >= places.length) delta.select(1, t).zero_();
}

}  // namespace

KvCacheLayer StateSpace::new_cache(int64_t slots, int64_t, const at::TensorOptions& options) const {
  KvCacheLayer cache;
  cache.columns = at::zeros({slots, columns_seen(), shape_.convolved()}, options);
  cache.state = at::zeros({slots, shape_.heads, shape_.sizes.head_size, shape_.sizes.state}, options.dtype(at::kFloat));
  return cache;
}

at::Tensor StateSpace::decode(const at::Tensor& x, const KvCacheLayer& cache, std::span<const CacheSpan> spans) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(spans.size()), x.size(0));
  for (const CacheSpan& span : spans)
    if (span.start == 0) cache.columns.select(0, span.slot).zero_(), cache.state.select(0, span.slot).zero_();
  const at::Tensor projected = parts_.in->forward(x, nullptr);
  const at::Tensor y = cut_places(spans) ? decode_cut(projected, cache, spans) : decode_here(projected, cache, spans);
  return parts_.out->forward(gated(y, projected, nullptr), nullptr);
}

at::Tensor StateSpace::decode_here(const at::Tensor& projected, const KvCacheLayer& cache, std::span<const CacheSpan> spans) {
  const SlotRows slots(spans);
  const at::Tensor columns = slots.take(cache.columns), state = slots.take(cache.state);
  Convolution convolution = convolution_of(projected, {});
  convolution.before = columns.unsqueeze(1);
  const Scan scan = scan_of(convolve(convolution), deltas(projected), {});
  slots.put(at::cat({columns, convolution.x}, 1).narrow(1, projected.size(1), columns_seen()), cache.columns);
  const at::Tensor y = scan_from(scan, state, are_prompts(spans));
  slots.put(state, cache.state);
  return y;
}

at::Tensor StateSpace::decode_cut(const at::Tensor& projected, const KvCacheLayer& cache, std::span<const CacheSpan> spans) {
  LOCKSTEP_CHECK(cache.pieces, "a prompt in pieces, and nobody passes their states on");
  const TokenPlaces& places = *cut_places(spans);
  const SlotRows slots(spans);
  PieceStates pieces(*cache.pieces, places, projected.size(1));
  Convolution convolution = convolution_of(projected, {});
  const at::Tensor columns = pieces.send_columns(convolution.x, columns_seen())();
  slots.put(pieces.last_columns(columns), cache.columns);
  convolution.pieces = pieces.pieces().of_each;
  convolution.before = pieces.columns_before(columns);
  const at::Tensor delta = deltas(projected);
  stop_behind_end(places, delta);
  Scan scan = scan_of(convolve(convolution), delta, {});
  scan.pieces = convolution.pieces;
  ScanStates states;
  const at::Tensor y = scan_forward(scan, &states);
  const PieceStates::Folded folded = pieces.fold(pieces.send_states(states)(), /*behind=*/true);
  slots.put(folded.behind.view({projected.size(0), shape_.heads, shape_.sizes.head_size, -1}), cache.state);
  add_first_states(scan, folded.first.view({projected.size(0), scan.pieces, shape_.heads, shape_.sizes.head_size, -1}), states, y);
  return y;
}

}  // namespace lockstep::nn
