#include "lockstep/nn/state_space.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/step_sizes.h"

namespace lockstep::nn {
namespace {

at::Tensor rows(const at::Tensor& x) { return x.flatten(0, 1); }  // [B, T, n], a view of equal distances too -> [B T, n]

at::Tensor fp32(const at::Tensor& x) { return x.to(at::kFloat); }

}  // namespace

double StateSpace::most_step() const {
  return shape_.sizes.step_most > 0 ? shape_.sizes.step_most : std::numeric_limits<double>::infinity();
}

StateSpace::StateSpace(Shape shape, Parts parts) : shape_(shape), parts_(std::move(parts)) {
  const auto& s = shape_.sizes;
  LOCKSTEP_CHECK(s.convolution >= 2, "a convolution over ", s.convolution, " tokens");
  LOCKSTEP_CHECK(shape.first_group + shape.read_groups <= shape.groups && shape.heads % shape.read_groups == 0, shape.heads,
                 " heads read groups ", shape.first_group, " + ", shape.read_groups, " of ", shape.groups);
  LOCKSTEP_CHECK(parts_.convolution.value.size(0) == shape.convolved() && parts_.convolution.value.size(1) == s.convolution,
                 "a convolution of ", parts_.convolution.value.sizes(), " for ", shape.convolved(), " columns");
}

at::Tensor StateSpace::channels(const at::Tensor& convolved) const {
  return convolved.narrow(2, 0, shape_.inner()).unflatten(2, {shape_.heads, shape_.sizes.head_size});
}

at::Tensor StateSpace::group_rows(const at::Tensor& convolved, bool c) const {
  const int64_t state = shape_.sizes.state, all = shape_.groups * state;
  return convolved.narrow(2, shape_.inner() + (c ? all : 0) + shape_.first_group * state, shape_.read_groups * state)
      .unflatten(2, {shape_.read_groups, state});
}

at::Tensor StateSpace::project(const at::Tensor& x, Saved* saved, const Sequences& sequences) {
  return parts_.in->forward(x, saved ? &saved->in : nullptr).view({sequences.count, sequences.length, -1});
}

at::Tensor StateSpace::forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) {
  auto* kept = static_cast<Saved*>(saved);
  const at::Tensor mixed = mix(project(x, kept, sequences), kept, sequences.places);
  return parts_.out->forward(mixed, kept ? &kept->out : nullptr);
}

void StateSpace::recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) {
  auto& kept = static_cast<Saved&>(saved);
  kept.out.x = mix(project(x, &kept, sequences), &kept, sequences.places);
}

std::optional<PieceStates> StateSpace::pieces_of_pass(const TokenPlaces* places, int64_t tokens) const {
  if (!parts_.pieces) return std::nullopt;
  LOCKSTEP_CHECK(places, "parts of sequences without the places of their tokens");
  return std::optional<PieceStates>(std::in_place, *parts_.pieces, *places, tokens);
}

Convolution StateSpace::convolution_of(const at::Tensor& projected, const at::Tensor& begins) const {
  return {.x = to_convolve(projected), .weight = parts_.convolution.value, .bias = parts_.convolution_bias.value, .begins = begins};
}

Scan StateSpace::scan_of(const at::Tensor& convolved, const at::Tensor& delta, const at::Tensor& begins) const {
  return {.x = channels(convolved), .b = group_rows(convolved, false), .c = group_rows(convolved, true), .delta = delta,
          .a = fp32(parts_.a_log.value).exp().neg_(), .d = fp32(parts_.d.value), .chunk = shape_.sizes.chunk, .begins = begins};
}

at::Tensor StateSpace::deltas(const at::Tensor& projected) const {
  return step_sizes(steps(projected), fp32(parts_.dt_bias.value), shape_.sizes.step_least, most_step());
}

at::Tensor StateSpace::gated(const at::Tensor& y, const at::Tensor& projected, GatedNorm::Saved* saved) {
  return parts_.norm->forward(y.view({-1, shape_.inner()}), rows(gate(projected)), saved)
      .view({projected.size(0), projected.size(1), shape_.inner()});
}

at::Tensor StateSpace::mix(const at::Tensor& projected, Saved* saved, const TokenPlaces* places) {
  const at::Tensor begins = document_begins(places);
  std::optional<PieceStates> pieces = pieces_of_pass(places, projected.size(1));
  Convolution convolution = convolution_of(projected, begins);
  Pending coming;
  if (pieces) coming = pieces->send_columns(convolution.x, columns_seen());
  at::Tensor delta = deltas(projected);
  if (pieces) convolution.pieces = pieces->pieces().of_each, convolution.before = pieces->columns_before(std::exchange(coming, {})());
  at::Tensor convolved = convolve(convolution);
  if (saved) saved->columns = convolution.before, saved->convolved = convolved, saved->delta = delta;
  convolution = {};
  Scan scan = scan_of(std::exchange(convolved, {}), std::exchange(delta, {}), begins);
  at::Tensor y;
  if (pieces) {
    y = pieces_forward(scan, *pieces, saved);
  } else if (saved) {
    ScanStates states;
    y = scan_forward(scan, &states);
    saved->before = states.before;
  } else {
    y = scan_forward(scan, nullptr);
  }
  scan = {};
  if (saved) saved->projected = projected, saved->places = places;
  return gated(y, projected, saved ? &saved->norm : nullptr);
}

at::Tensor StateSpace::pieces_forward(Scan& scan, PieceStates& pieces, Saved* saved) const {
  scan.pieces = pieces.pieces().of_each;
  ScanStates states;
  const at::Tensor y = scan_forward(scan, &states);
  Pending coming = pieces.send_states(states);
  states.after.reset(), states.decay.reset();
  PieceStates::Folded folded = pieces.fold(std::exchange(coming, {})(), /*behind=*/false);
  if (saved) saved->decays = folded.decays;
  folded.decays.reset();
  add_first_states(scan, std::exchange(folded.first, {}).view({scan.x.size(0), scan.pieces, scan.x.size(2), scan.x.size(3), -1}), states, y);
  if (saved) saved->before = states.before;
  return y;
}

at::Tensor StateSpace::backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  return parts_.in->backward_input(core_backward(dy, kept), kept.in);
}

Pending StateSpace::start_backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  return parts_.in->start_backward_input(core_backward(dy, kept), kept.in);
}

at::Tensor StateSpace::core_backward(const at::Tensor& dy, Saved& saved) {
  const at::Tensor begins = document_begins(saved.places);
  std::optional<PieceStates> pieces = pieces_of_pass(saved.places, saved.projected.size(1));
  at::Tensor dmixed = parts_.out->backward_input(dy, saved.out);
  at::Tensor dprojected = at::empty_like(saved.projected);
  const at::Tensor dconvolved = to_convolve(dprojected);
  saved.small = at::zeros({shape_.convolved() * (shape_.sizes.convolution + (parts_.convolution_bias.defined() ? 1 : 0)) + 3 * shape_.heads},
                          dprojected.options().dtype(at::kFloat));
  const Small small = small_of(saved.small);
  at::Tensor ddelta = at::empty_like(saved.delta);
  {
    Scan scan = scan_of(std::exchange(saved.convolved, {}), std::exchange(saved.delta, {}), begins);
    at::Tensor dscan = parts_.norm->backward_input(dmixed.view({-1, shape_.inner()}), saved.norm, rows(gate(dprojected)));
    dmixed.reset();
    dscan = dscan.view(scan.x.sizes());
    at::Tensor dlast;
    if (pieces) scan.pieces = pieces->pieces().of_each, dlast = last_gradients(scan, *pieces, dscan, saved);
    if (shape_.read_groups < shape_.groups) dconvolved.narrow(2, shape_.inner(), 2 * shape_.groups * shape_.sizes.state).zero_();
    scan_backward(scan, {.before = std::exchange(saved.before, {}), .after = {}, .decay = {}}, dscan, dlast,
                  {.dx = channels(dconvolved), .db = group_rows(dconvolved, false), .dc = group_rows(dconvolved, true), .ddelta = ddelta,
                   .da = small.a_log, .dd = small.d});
    small.a_log.mul_(scan.a);  // a = -exp(a_log)
  }
  step_sizes_backward(steps(saved.projected), fp32(parts_.dt_bias.value), shape_.sizes.step_least, most_step(),
                      std::exchange(ddelta, {}), small.dt_bias, steps(dprojected));
  convolution_backward(dprojected, begins, pieces, saved);
  saved.projected.reset();  // the norm keeps z
  return dprojected;
}

at::Tensor StateSpace::last_gradients(const Scan& scan, PieceStates& pieces, const at::Tensor& dy, Saved& saved) const {
  Pending coming = pieces.send_state_gradients(scan_backward_first(scan, dy));
  return pieces.fold_gradients(std::exchange(coming, {})(), std::exchange(saved.decays, {}))
      .view({scan.x.size(0), scan.pieces, scan.x.size(2), scan.x.size(3), -1});
}

void StateSpace::convolution_backward(const at::Tensor& dprojected, const at::Tensor& begins, std::optional<PieceStates>& pieces,
                                      Saved& saved) const {
  Convolution convolution = convolution_of(saved.projected, begins);
  if (pieces) convolution.pieces = pieces->pieces().of_each, convolution.before = std::exchange(saved.columns, {});
  const at::Tensor dconvolved = to_convolve(dprojected);
  const Small small = small_of(saved.small);
  convolve_backward_weight(convolution, dconvolved, small.weight, small.bias);
  at::Tensor dbefore;
  if (pieces) dbefore = at::empty(convolution.before.sizes(), convolution.before.options().dtype(at::kFloat));
  convolve_backward_input(convolution, dconvolved, {.dx = dconvolved, .dbefore = dbefore});
  if (!pieces) return;
  Pending coming = pieces->send_column_gradients(std::exchange(dbefore, {}));
  pieces->add_column_gradients(coming(), dconvolved);
}

StateSpace::Small StateSpace::small_of(const at::Tensor& all) const {
  int64_t begin = 0;
  const auto next = [&](int64_t numel) { return all.narrow(0, std::exchange(begin, begin + numel), numel); };
  const int64_t columns = shape_.convolved(), heads = shape_.heads;
  Small small{.weight = next(columns * shape_.sizes.convolution).view({columns, -1}), .bias = {}, .a_log = {}, .d = {}, .dt_bias = {}};
  if (parts_.convolution_bias.defined()) small.bias = next(columns);
  small.a_log = next(heads), small.d = next(heads), small.dt_bias = next(heads);
  return small;
}

void StateSpace::backward_weight(Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  parts_.out->backward_weight(kept.out);
  parts_.norm->backward_weight(kept.norm);
  add_small(small_of(std::exchange(kept.small, {})));
  parts_.in->backward_weight(kept.in);
}

void StateSpace::add_small(const Small& gradients) const {
  parts_.convolution.grad.add_(gradients.weight);
  if (parts_.convolution_bias.defined()) parts_.convolution_bias.grad.add_(gradients.bias);
  parts_.a_log.grad.add_(gradients.a_log);
  parts_.d.grad.add_(gradients.d);
  parts_.dt_bias.grad.add_(gradients.dt_bias);
}

void StateSpace::forget(Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  kept.in.x.reset();
  kept.convolved.reset();
  kept.delta.reset();
  kept.out.x.reset();
}

void StateSpace::restore(const at::Tensor& x, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  kept.in.x = x;
  kept.delta = deltas(kept.projected);
  Convolution convolution = convolution_of(kept.projected, document_begins(kept.places));
  if (kept.columns.defined()) convolution.pieces = kept.columns.size(1), convolution.before = kept.columns;
  kept.convolved = convolve(convolution);
  kept.out.x = gated(kept.norm.x, kept.projected, nullptr);
}

}  // namespace lockstep::nn
