#include "lockstep/nn/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/window_spans.h"

namespace lockstep::nn {

Attention::Attention(Shape shape, std::unique_ptr<Linear> qkv, std::optional<Rotary> rotary,
                     std::unique_ptr<Linear> out, std::unique_ptr<QueryKeyNorm> norm, std::unique_ptr<ContextAttention> context,
                     Parameter sinks)
    : shape_(shape),
      qkv_(std::move(qkv)),
      rotary_(std::move(rotary)),
      out_(std::move(out)),
      norm_(std::move(norm)),
      context_(std::move(context)),
      sinks_(std::move(sinks)) {}

at::Tensor Attention::forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) {
  auto* kept = static_cast<Saved*>(saved);
  const at::Tensor projected = project(x, kept, sequences);
  const at::Tensor mixed = mix(projected, kept, sequences);
  return out_->forward(mixed, kept ? &kept->out : nullptr);
}

at::Tensor Attention::project(const at::Tensor& x, Saved* saved, const Sequences& sequences) {
  return qkv_->forward(x, saved ? &saved->qkv : nullptr).view({sequences.count, sequences.length, -1});
}

at::Tensor Attention::mix(const at::Tensor& projected, Saved* saved, const Sequences& sequences) {
  place(projected, sequences.places, saved);
  at::Tensor mixed = core_forward(split(projected), sequences.places, saved);
  if (saved) saved->projected = projected, saved->places = sequences.places;
  return mixed;
}

at::Tensor Attention::core_forward(const Heads& heads, const TokenPlaces* places, Saved* saved) {
  if (context_) {
    LOCKSTEP_CHECK(places, "parts of sequences without the places of their tokens");
    return context_->forward({.q = heads.q, .k = heads.k, .v = heads.v}, *places, options(), saved ? &saved->context : nullptr);
  }
  const at::Tensor q = heads.q.transpose(1, 2), k = heads.k.transpose(1, 2), v = heads.v.transpose(1, 2);
  AttentionCoreSaved* const kept = saved ? &saved->core : nullptr;
  const auto in_spans = [&](const KeySpans& spans) { return attention_core_forward(q, k, v, spans, kept, shape_.scale, sinks_.value); };
  if (places) return in_spans(spans_of(*places, 0, shape_.window));
  if (shape_.window > 0 && shape_.window < q.size(2)) return in_spans(spans_in_window(q.size(0), q.size(2), shape_.window));
  return attention_core_forward(q, k, v, /*causal=*/true, kept, shape_.scale, sinks_.value);
}

void Attention::recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) {
  auto& kept = static_cast<Saved&>(saved);
  kept.out.x = mix(project(x, &kept, sequences), &kept, sequences);
}

at::Tensor Attention::backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  return qkv_->backward_input(core_backward(dy, kept), kept.qkv);
}

Pending Attention::start_backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  return qkv_->start_backward_input(core_backward(dy, kept), kept.qkv);
}

at::Tensor Attention::core_backward(const at::Tensor& dy, Saved& saved) {
  at::Tensor dprojected = std::exchange(saved.projected, {});
  const auto [q, k, v] = split(dprojected);
  const at::Tensor dmixed = out_->backward_input(dy, saved.out).view({q.size(0), q.size(1), -1});
  if (sinks_.value.defined()) saved.dsinks = at::zeros({shape_.heads}, dmixed.options().dtype(at::kFloat));
  const AttentionCoreGrads grads{.dq = q, .dk = k, .dv = v, .dsinks = saved.dsinks};
  if (saved.context)
    context_->backward(dmixed, std::exchange(saved.context, {}), grads);
  else
    attention_core_backward(dmixed, saved.core, grads);
  if (rotary_ && saved.places) rotary_->apply_inverse(rotated(dprojected), saved.places->positions);
  if (rotary_ && !saved.places) rotary_->apply_inverse(rotated(dprojected));
  if (norm_) norm_->backward_input(q, k, saved.norm);
  return dprojected;
}

void Attention::forget(Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  kept.qkv.x.reset();
  if (!norm_) return;  // what was only rotated stays so
  const auto [q, k, v] = split(kept.projected);
  norm_->forget(q, k, kept.norm);
}

void Attention::restore(const at::Tensor& x, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  kept.qkv.x = x;
  if (norm_) place(kept.projected, kept.places, &kept);
}

void Attention::place(const at::Tensor& projected, const TokenPlaces* places, Saved* saved) {
  normalise(projected, saved);
  if (rotary_ && places) rotary_->apply(rotated(projected), places->positions);
  if (rotary_ && !places) rotary_->apply(rotated(projected));
}

void Attention::normalise(const at::Tensor& projected, Saved* saved) {
  if (!norm_) return;
  const auto [q, k, v] = split(projected);
  norm_->forward(q, k, saved ? &saved->norm : nullptr);
}

void Attention::backward_weight(Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  out_->backward_weight(kept.out);
  if (norm_) norm_->backward_weight(kept.norm);
  if (kept.dsinks.defined()) sinks_.grad.add_(std::exchange(kept.dsinks, {}));
  qkv_->backward_weight(kept.qkv);
}

KvCacheLayer Attention::new_cache(int64_t slots, int64_t capacity, const at::TensorOptions& options) const {
  const auto empty = [&] { return at::empty({slots, shape_.kv_heads, capacity, shape_.head_size}, options); };
  return {.k = empty(), .v = empty()};
}

at::Tensor Attention::decode(const at::Tensor& x, const KvCacheLayer& cache, std::span<const CacheSpan> spans) {
  const at::Tensor projected = qkv_->forward(x, nullptr);
  normalise(projected, nullptr);
  if (rotary_) {
    const at::Tensor turned = rotated(projected);
    for (size_t b = 0; b < spans.size(); ++b)
      for (const PositionRun& run : runs_of(spans[b], turned.size(1)))
        rotary_->apply(turned.narrow(0, static_cast<int64_t>(b), 1).narrow(1, run.row, run.count), run.position);
  }
  const Heads heads = split(projected);
  append_to_cache(heads.k, heads.v, cache, spans);
  at::Tensor mixed;
  if (!are_prompts(spans))
    mixed = attention_decode(heads.q, cache, spans, options());
  else if (const TokenPlaces* cut = cut_places(spans))
    mixed = cache.context->prompts().forward({.q = heads.q, .k = heads.k, .v = heads.v}, *cut, options(), nullptr);
  else
    mixed = core_forward(heads, nullptr, nullptr);
  return out_->forward(mixed, nullptr);
}

Attention::Heads Attention::split(const at::Tensor& projected) const {
  const at::Tensor heads = projected.view({projected.size(0), projected.size(1), -1, shape_.head_size});
  return {.q = heads.narrow(2, 0, shape_.heads),
          .k = heads.narrow(2, shape_.heads, shape_.kv_heads),
          .v = heads.narrow(2, shape_.heads + shape_.kv_heads, shape_.kv_heads)};
}

at::Tensor Attention::rotated(const at::Tensor& projected) const {
  const at::Tensor heads = projected.view({projected.size(0), projected.size(1), -1, shape_.head_size});
  return heads.narrow(2, 0, shape_.heads + shape_.kv_heads);
}

}  // namespace lockstep::nn
